// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

var nvidiaHandlers = []runtime.Handler{{Name: "nvidia", Program: "nvidia-container-runtime"},
	{Name: "runc", Program: "runc", BaseSpec: "/etc/containerd/base.json", Memlock: bytesOf(unlimited)}}

// memlockCauses are the causes of a low memlock.
var memlockCauses = map[string]func(s *sick){
	"no RuntimeClass": func(s *sick) { s.starved(64 << 10) },
	"another handler without a base spec": func(s *sick) {
		s.starved(8 << 20).Handler = "own"
		s.runtime().Handlers = append(s.runtime().Handlers, runtime.Handler{Name: "own", Program: "runc"})
	},
	"the base spec is on runc, and its handler is NVIDIA's": func(s *sick) {
		s.starved(8 << 20).Handler = "nvidia"
		s.runtime().Handlers = nvidiaHandlers
	},
	"the base spec is on runc, and NVIDIA's handler is the default": func(s *sick) {
		s.starved(8 << 20)
		s.runtime().Handlers, s.runtime().DefaultHandler = nvidiaHandlers, "nvidia"
	},
	"a handler that is like its own gives memlock": func(s *sick) {
		s.starved(8 << 20).Handler = "nvidia"
		s.runtime().Handlers = append(slices.Clone(nvidiaHandlers), runtime.Handler{Name: "rdma-gpu",
			Program: "nvidia-container-runtime", BaseSpec: "/etc/containerd/gpu.json", Memlock: bytesOf(1 << 40)})
	},
	"the daemon's limit was raised later": func(s *sick) {
		s.starved(8 << 20)
		s.runtime().Memlock = bytesOf(unlimited)
	},
	"its handler got a base spec later": func(s *sick) { s.starved(64 << 20).Handler = "rdma" },
	"CRI-O's default_ulimits were set later": func(s *sick) {
		s.starved(8 << 20)
		s.runtime().Name, s.runtime().Version, s.runtime().Handlers = runtime.NameCRIO, "1.34.0", nil
		s.runtime().DefaultMemlock = bytesOf(unlimited)
	},
	"its base spec limits it": func(s *sick) {
		s.starved(64 << 10).Handler = "rdma"
		s.runtime().Handlers[0].Memlock = bytesOf(64 << 10)
	},
	"nothing gives memlock, and NRI is on": func(s *sick) {
		s.starved(8 << 20)
		s.runtime().Handlers = s.runtime().Handlers[1:]
	},
	"nothing gives memlock, and NRI is off": func(s *sick) {
		s.starved(8 << 20)
		s.runtime().Handlers, s.runtime().NRI = s.runtime().Handlers[1:], runtime.NRI{Off: "disable = true"}
	},
	"nothing gives memlock, and containerd is too old for the plugin": func(s *sick) {
		s.starved(64 << 10)
		s.runtime().Handlers, s.runtime().Version = s.runtime().Handlers[1:], "1.6.20"
	},
	"its program does not raise its own limit": func(s *sick) {
		s.starved(8 << 20).Memlock.Hard = unlimited
	},
	// seen in ai4d-iasc/trixie#81, omnivector-solutions/snap-slurm#83
	"a job of Slurm whose hard limit was lowered": func(s *sick) {
		c := s.starved(8 << 20)
		c.PID, c.Memlock.Hard = 500, unlimited
		c.Least = node.Registering{PID: 501, User: 1000, Registers: c.Registers, Memlock: *both(8 << 20)}
	},
	"a job of a privileged daemon": func(s *sick) {
		c := s.starved(8 << 20)
		c.RDMA, c.Uses, c.AllDevices, c.PID = false, true, true, 500
		c.Least = node.Registering{PID: 501, User: 1000, Registers: c.Registers, Memlock: *both(8 << 20)}
		s.containers.Containers, s.containers.Others = nil, s.containers.Containers
	},
	"the plugin does not run": func(s *sick) {
		plugin := s.plugin
		s.starved(8 << 20)
		s.plugin = plugin
		s.plugin.Processes, s.plugin.Policy.Lives = nil, false
	},
	"the policy gives more": func(s *sick) {
		c := s.container()
		c.Memlock, c.Registers, c.State = both(8<<20), bytesOf(8<<20), node.StateBelow
		c.Raise.Action, c.Fix = node.Repair, "rdma-spec repair ml/train-0"
	},
	"the policy gives more, and CRI-O does not let a repair": func(s *sick) {
		c := s.container()
		c.Memlock, c.Registers, c.State = both(8<<20), bytesOf(8<<20), node.StateBelow
		c.Raise.Action, c.Fix = node.Recreate, "recreate the pod"
	},
	"the policy gives more, and an HCA": func(s *sick) {
		c := s.container()
		c.Memlock, c.Registers, c.State = both(8<<20), bytesOf(8<<20), node.StateBelow
		c.Raise.Action, c.Fix, c.HCAs = node.Repair, "recreate the pod", nil
		c.Lacks.Devices = []hca.Device{{HCA: "mlx5_0"}}
		c.Problems = []string{"memlock is 8Mi, but the policy grants unlimited", "the container has no HCA, but the policy grants mlx5_0"}
	},
	"a rule leaves it unchanged": func(s *sick) {
		c := s.container()
		c.Memlock, c.Registers, c.Wanted, c.Rule = both(8<<20), bytesOf(8<<20), &spec.Grant{}, "counter"
	},
	"a user namespace": func(s *sick) { s.starved(8 << 20).UserNamespace = true },
	"a user namespace, privileged": func(s *sick) {
		c := s.starved(8 << 20)
		c.UserNamespace, c.AllDevices, c.Bounding = true, true, []string{spec.CapIPCLock}
	},
	"a user namespace, without IPC_LOCK": func(s *sick) {
		c := s.starved(8 << 20)
		c.UserNamespace, c.Bounding = true, []string{"CAP_CHOWN"}
	},
}

// A container that can register too little is named, with the cause that is the case, whether or not there is a policy.
func TestContainerMemlock_causes(t *testing.T) {
	var says golden.Cases
	for name, plant := range memlockCauses {
		s := healthy()
		plant(s)
		says.Add(t, name, said(wrong(s.look(t, software()))...))
	}
	says.Compare(t, "testdata/memlock.txt")
}

// What the kernel lets register is enough: what a policy wants beyond that is a note, and nothing is to be done.
func TestContainerMemlock_enough(t *testing.T) {
	for name, test := range map[string]struct {
		plant func(s *sick)
		note  string // a part of one, by any check
	}{
		"root with IPC_LOCK, without the plugin": {func(s *sick) {
			c := s.starved(8 << 20)
			c.Registers, c.IPCLock, c.Bounding = bytesOf(unlimited), yes(true), []string{spec.CapIPCLock}
			s.runtime().Handlers = s.runtime().Handlers[1:]
		}, "The handler sets memlock to 8Mi, but RDMA containers with this handler can register more memory"},
		"root with IPC_LOCK, below the policy": {func(s *sick) {
			s.container().Memlock, s.container().Raise.Action = both(8<<20), node.Repair
		}, "The container's memlock is below the policy's grant (unlimited), but CAP_IPC_LOCK lets the container register more memory."},
		"a limit that the policy sets": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.Wanted = both(32<<20), bytesOf(32<<20), &spec.Grant{Memlock: 32 << 20}
		}, ""},
		"more than 64 MiB, without a policy": {func(s *sick) { s.starved(65 << 20) }, ""},
		"more than 64 MiB, below the policy": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.State = both(1<<30), bytesOf(1<<30), node.StateBelow
			c.Problems, c.Raise.Action = []string{"memlock is 1Gi, the policy gives unlimited"}, node.Repair
		}, "Memlock is 1Gi, the policy gives unlimited (fix: rdma-spec repair ml/train-0)."},
		"a privileged daemon whose job can register enough": {func(s *sick) {
			c := s.container()
			c.RDMA, c.Uses, c.AllDevices, c.Wanted = false, true, true, nil
			s.containers.Containers, s.containers.Others = nil, s.containers.Containers[:1]
		}, ""},
		"a job that has no HCA open, and little memlock": {func(s *sick) {
			s.container().Idle = node.Registering{PID: 501, User: 1000, Registers: bytesOf(8 << 20)}
		}, "No process has an HCA open. Process 501 of user 1000 can register at most 8Mi"},
		"another plugin is required": {func(s *sick) { s.runtime().NRI.Required = []string{"image-policy", "audit"} },
			"requires these plugins: image-policy, audit"},
		"a device plugin with CDI, which is on": {func(s *sick) { s.cdi.Files = append(s.cdi.Files, sriovFile) }, ""},
		"1024 open files, which a program may raise": {func(s *sick) {
			s.container().OpenFiles = &spec.Rlimit{Soft: 1024, Hard: 1 << 19}
		}, "as is the default in containerd 2.0 and later. The container's programs might report"},
		"few open files by a base spec that says so": {func(s *sick) { s.container().OpenFiles = nil }, ""},
		"a resource for a virtual machine, or none of RDMA": {func(s *sick) {
			s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "vm", Container: "main"},
				Given: []string{"nvidia.com/hostdev"}}}
		}, "The kubelet allocated nvidia.com/hostdev to the container, but the container has no HCA."},
	} {
		s := healthy()
		test.plant(s)
		noted := test.note == ""
		for _, f := range s.look(t, software()) {
			if f.Status == doctor.Wrong {
				t.Errorf("%s: %+v", name, f)
			}
			noted = noted || strings.Contains(f.Text, test.note)
		}
		if !noted {
			t.Errorf("%s: no check says %q", name, test.note)
		}
	}
}

// A pod that was given an HCA which its device plugin leaves to CDI, where CDI is off, has nothing and hears nothing.
func TestContainerHCA_cdiOff(t *testing.T) {
	s := healthy()
	s.runtime().CDIOff, s.cdi.Files = true, append(s.cdi.Files[1:], sriovFile)
	s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "train-2", Container: "main"},
		Runtime: s.container().Runtime, Given: []string{"nvidia.com/sriov_rdma"}}}
	found := wrong(s.look(t, software()))
	if want := []string{"cdi-on wrong " + theRuntime, "container-hca wrong container ml/train-2 main"}; !slices.Equal(summary(found), want) {
		t.Errorf("%q, want %q", summary(found), want)
	}
}

// restartsRuntime are fixes that restart a container runtime.
var restartsRuntime = regexp.MustCompile(`systemctl restart (containerd|crio|k3s\S*)|--restart`)

// A restart of a runtime ends exec sessions: it is no fix to paste, and configure makes it where it can.
func TestFix_warnsOfRestarts(t *testing.T) {
	for _, p := range faults() {
		for _, f := range p.look(t) {
			switch {
			case f.Status != doctor.Wrong || !restartsRuntime.MatchString(f.Fix):
			case f.FixType == doctor.FixSafe || !strings.Contains(f.Warning, "ends exec sessions"):
				t.Errorf("%s: %s, %q: %s", p.name, f.FixType, f.Warning, f.Fix)
			case strings.Contains(f.Fix, "configure") && strings.Contains(f.Fix, "systemctl restart"):
				t.Errorf("%s: %s", p.name, f.Fix)
			}
		}
	}
}

// Whatever is unknown, a container that can register 64 KiB is a fault, and one that cannot be seen is not called well.
func TestContainerMemlock_starvedIsNeverOK(t *testing.T) {
	parts := []string{"runtimes.json", "plugin.json", "configured.json", "kubelet.json", "cdi.json"}
	for unanswered := range 1 << len(parts) {
		for name, registers := range map[string]*spec.Limit{"64 KiB": bytesOf(64 << 10), "unseen": nil} {
			s := healthy()
			s.starved(64 << 10).Registers = registers
			for i, part := range parts {
				if unanswered>>i&1 == 1 {
					s.unanswered = append(s.unanswered, part)
				}
			}
			found := s.look(t, software())
			err := doctor.Concluded(found)
			if registers != nil && !errors.Is(err, cli.ErrProblemFound) {
				t.Errorf("%s, without %q: %v", name, s.unanswered, err)
			}
			i := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == "container-memlock" })
			if want := map[bool]doctor.Status{true: doctor.Wrong, false: doctor.Unknown}[registers != nil]; found[i].Status != want {
				t.Errorf("%s, without %q: %+v", name, s.unanswered, found[i])
			}
		}
	}
}
