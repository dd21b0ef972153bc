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
)

// A container that can register too little is named, with the cause that is the case, whether or not there is a policy.
func TestCauseOfLowMemlock(t *testing.T) {
	nvidia := []runtime.Handler{{Name: "nvidia", Program: "nvidia-container-runtime"},
		{Name: "runc", Program: "runc", BaseSpec: "/etc/containerd/base.json", Memlock: bytesOf(unlimited)}}
	for name, test := range map[string]struct {
		plant       func(s *sick)
		text, cure  string
		class       doctor.Class
		besideWrong []string // other checks that find a fault
	}{
		"no RuntimeClass": {func(s *sick) { s.starved(64 << 10) },
			"It holds mlx5_0 and can register 64Ki at most: its pod has no RuntimeClass, and the handler rdma of this node " +
				"would give it unlimited.", "Set runtimeClassName: rdma", doctor.ClassByHand, nil},
		"another handler without a base spec": {func(s *sick) {
			s.starved(8 << 20).Handler = "own"
			s.runtime().Handlers = append(s.runtime().Handlers, runtime.Handler{Name: "own", Program: "runc"})
		}, "its handler is own (containerd itself has 8Mi), and rdma would give it unlimited.", "Set runtimeClassName: rdma",
			doctor.ClassByHand, nil},
		"the base spec is on runc, and its handler is NVIDIA's": {func(s *sick) {
			s.starved(8 << 20).Handler = "nvidia"
			s.runtime().Handlers = nvidia
		}, "the base_runtime_spec with unlimited is that of handler runc, and its own is nvidia, which starts " +
			"nvidia-container-runtime", "rdma-spec configure handler rdma-nvidia --like nvidia --restart",
			doctor.ClassWithCare, nil},
		"the base spec is on runc, and NVIDIA's handler is the default": {func(s *sick) {
			s.starved(8 << 20)
			s.runtime().Handlers, s.runtime().DefaultHandler = nvidia, "nvidia"
		}, "and its own is nvidia", "rdma-spec configure handler rdma-nvidia --like nvidia --restart", doctor.ClassWithCare,
			nil},
		"a handler that is like its own gives memlock": {func(s *sick) {
			s.starved(8 << 20).Handler = "nvidia"
			s.runtime().Handlers = append(slices.Clone(nvidia), runtime.Handler{Name: "rdma-gpu",
				Program: "nvidia-container-runtime", BaseSpec: "/etc/containerd/gpu.json", Memlock: bytesOf(1 << 40)})
		}, "and rdma-gpu would give it 1Ti.", "Set runtimeClassName: rdma-gpu", doctor.ClassByHand, nil},
		"the daemon's limit was raised later": {func(s *sick) {
			s.starved(8 << 20)
			s.runtime().Memlock = bytesOf(unlimited)
		}, "its runtime gives unlimited now (containerd itself has unlimited), and it was created before that: create the " +
			"pod again.", "kubectl -n ml delete pod train-0", doctor.ClassWithCare, nil},
		"its handler got a base spec later": {func(s *sick) { s.starved(64 << 20).Handler = "rdma" },
			"its runtime gives unlimited now (/etc/containerd/rdma.json, the base_runtime_spec of rdma), and it was created " +
				"before that", "kubectl -n ml delete pod train-0", doctor.ClassWithCare, nil},
		"CRI-O's default_ulimits were set later": {func(s *sick) {
			s.starved(8 << 20)
			s.runtime().Name, s.runtime().Version, s.runtime().Handlers = runtime.NameCRIO, "1.34.0", nil
			s.runtime().DefaultMemlock = bytesOf(unlimited)
		}, "its runtime gives unlimited now (default_ulimits)", "kubectl -n ml delete pod train-0", doctor.ClassWithCare, nil},
		"its base spec limits it": {func(s *sick) {
			s.starved(64 << 10).Handler = "rdma"
			s.runtime().Handlers[0].Memlock = bytesOf(64 << 10)
		}, "the base_runtime_spec of its handler rdma, /etc/containerd/rdma.json, limits it",
			"rdma-spec configure handler rdma --in-place --restart", doctor.ClassWithCare, nil},
		"nothing gives memlock, and NRI is on": {func(s *sick) {
			s.starved(8 << 20)
			s.runtime().Handlers = s.runtime().Handlers[1:]
		}, "nothing on this node gives memlock (containerd itself has 8Mi).", "rdma-spec configure plugin && systemctl " +
			"daemon-reload && systemctl enable --now nri-rdma && rdma-spec wait && rdma-spec repair ml/train-0",
			doctor.ClassPaste, nil},
		"nothing gives memlock, and NRI is off": {func(s *sick) {
			s.starved(8 << 20)
			s.runtime().Handlers, s.runtime().NRI = s.runtime().Handlers[1:], runtime.NRI{Off: "disable = true"}
		}, "nothing on this node gives memlock", "rdma-spec configure nri --restart && rdma-spec configure plugin",
			doctor.ClassWithCare, nil},
		"nothing gives memlock, and containerd is too old for the plugin": {func(s *sick) {
			s.starved(64 << 10)
			s.runtime().Handlers, s.runtime().Version = s.runtime().Handlers[1:], "1.6.20"
		}, "nothing on this node gives memlock", "rdma-spec configure handler rdma --like runc --restart",
			doctor.ClassWithCare, []string{"runtime-rlimits"}},
		"its program does not raise its own limit": {func(s *sick) {
			s.starved(8 << 20).Memlock.Hard = unlimited
		}, "its program has lowered its own limit, or did not raise it", "ulimit -l unlimited", doctor.ClassByHand, nil},
		"the plugin does not run": {func(s *sick) {
			plugin := s.plugin
			s.starved(8 << 20)
			s.plugin = plugin
			s.plugin.Processes, s.plugin.Policy.Lives = nil, false
		}, "it was created while the plugin nri-rdma was not registered", "and then: rdma-spec repair ml/train-0",
			doctor.ClassByHand, []string{"plugin-runs"}},
		"the policy gives more": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.State = both(8<<20), bytesOf(8<<20), node.StateBelow
			c.Remedy = node.Remedy{Action: node.Repair, Text: "rdma-spec repair ml/train-0"}
		}, "the policy gives it more", "rdma-spec repair ml/train-0", doctor.ClassPaste, nil},
		"the policy gives more, and CRI-O does not let a repair": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.State = both(8<<20), bytesOf(8<<20), node.StateBelow
			c.Remedy = node.Remedy{Action: node.Recreate, Text: "recreate the pod"}
		}, "the policy gives it more", "kubectl -n ml delete pod train-0", doctor.ClassWithCare, nil},
		"a rule leaves it unchanged": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.Wanted, c.Rule = both(8<<20), bytesOf(8<<20), &spec.Grant{}, "counter"
		}, `the policy leaves its memlock unchanged (rule "counter")`, "Set memlock in that rule", doctor.ClassByHand, nil},
		"a user namespace": {func(s *sick) { s.starved(8 << 20).UserNamespace = true },
			"CAP_IPC_LOCK does not count in its user namespace: its pod has no RuntimeClass", "runtimeClassName: rdma",
			doctor.ClassByHand, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			test.plant(s)
			seen := false
			for _, f := range s.look(t, software()) {
				switch {
				case f.Status != doctor.Wrong || slices.Contains(test.besideWrong, f.Check):
				case f.Check == "container-memlock" && f.Object == theTrainer && strings.Contains(f.Text, test.text) &&
					strings.Contains(f.Cure, test.cure) && f.Class == test.class:
					seen = true
				default:
					t.Errorf("%+v", f)
				}
			}
			if !seen {
				t.Error("container-memlock does not name it")
			}
		})
	}
}

// What the kernel lets register is enough: what a policy wants beyond that is a note, and nothing is to be done.
func TestEnoughMemlock(t *testing.T) {
	for name, test := range map[string]struct {
		plant func(s *sick)
		note  string // a part of one, by any check
	}{
		"root with IPC_LOCK, without the plugin": {func(s *sick) {
			c := s.starved(8 << 20)
			c.Registers, c.IPCLock, c.Bounding = bytesOf(unlimited), yes(true), []string{spec.CapIPCLock}
			s.runtime().Handlers = s.runtime().Handlers[1:]
		}, "It gives 8Mi, and its RDMA containers can register more"},
		"root with IPC_LOCK, below the policy": {func(s *sick) {
			s.container().Memlock, s.container().Remedy.Action = both(8<<20), node.Repair
		}, "Its memlock is below unlimited, which the policy gives; with CAP_IPC_LOCK it can register more."},
		"a limit that the policy sets": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.Wanted = both(32<<20), bytesOf(32<<20), &spec.Grant{Memlock: 32 << 20}
		}, ""},
		"more than 64 MiB, without a policy": {func(s *sick) { s.starved(65 << 20) }, ""},
		"more than 64 MiB, below the policy": {func(s *sick) {
			c := s.container()
			c.Memlock, c.Registers, c.State = both(1<<30), bytesOf(1<<30), node.StateBelow
			c.Problems, c.Remedy.Action = []string{"memlock is 1Gi, the policy gives unlimited"}, node.Repair
		}, "Memlock is 1Gi, the policy gives unlimited."},
		"another plugin is required": {func(s *sick) { s.runtime().NRI.Required = []string{"image-policy", "audit"} },
			"must have the plugins image-policy, audit"},
		"a device plugin with CDI, which is on": {func(s *sick) { s.cdi.Files = append(s.cdi.Files, sriovFile) }, ""},
		"1024 open files, which a program may raise": {func(s *sick) {
			s.container().OpenFiles = &spec.Rlimit{Soft: 1024, Hard: 1 << 19}
		}, "containerd 2.0 and later does not. If its programs say"},
		"few open files by a base spec that says so": {func(s *sick) { s.container().OpenFiles = nil }, ""},
		"a resource for a virtual machine, or none of RDMA": {func(s *sick) {
			s.containers.Lacking = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "vm", Container: "main"},
				Given: []string{"nvidia.com/hostdev"}}}
		}, "The kubelet gave it nvidia.com/hostdev, and it holds no HCA."},
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
func TestGivenAndNotThere(t *testing.T) {
	s := healthy()
	s.runtime().CDIOff, s.cdi.Files = true, append(s.cdi.Files[1:], sriovFile)
	s.containers.Lacking = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "train-2", Container: "main"},
		Runtime: s.container().Runtime, Given: []string{"nvidia.com/sriov_rdma"}}}
	var found []string
	for _, f := range s.look(t, software()) {
		if f.Status == doctor.Wrong {
			found = append(found, f.Check+" "+f.Object)
		}
	}
	if want := []string{"cdi-on " + theRuntime, "container-hca container ml/train-2 main"}; !slices.Equal(found, want) {
		t.Errorf("%q, want %q", found, want)
	}
}

// restartsRuntime are cures that restart a container runtime.
var restartsRuntime = regexp.MustCompile(`systemctl restart (containerd|crio|k3s\S*)|--restart`)

// A restart of a runtime ends exec sessions: it is no cure to paste, and configure makes it where it can.
func TestRestartsAreWithCare(t *testing.T) {
	for name := range planted {
		for _, f := range lookAt(t, name) {
			switch {
			case f.Status != doctor.Wrong || !restartsRuntime.MatchString(f.Cure):
			case f.Class == doctor.ClassPaste || !strings.Contains(f.Care, "ends exec sessions"):
				t.Errorf("%s: %s, %q: %s", name, f.Class, f.Care, f.Cure)
			case strings.Contains(f.Cure, "configure") && strings.Contains(f.Cure, "systemctl restart"):
				t.Errorf("%s: %s", name, f.Cure)
			}
		}
	}
}

// Whatever is unknown, a container that can register 64 KiB is a fault, and one that cannot be seen is not called well.
func TestStarvedIsNeverWell(t *testing.T) {
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
