// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// asksForGPUs is what a GPU device plugin, or an image, sets.
var asksForGPUs = cri.Env{"NVIDIA_VISIBLE_DEVICES": "all"}

// hooked is a node without the plugin, whose default handler is NVIDIA's runtime, and whose container can register
// 8 MiB.
func hooked() *sick {
	s := healthy()
	s.starved(8 << 20).Env = maps.Clone(asksForGPUs)
	s.runtime().DefaultHandler = "nvidia"
	s.runtime().Handlers = []runtime.Handler{{Name: "runc", Program: "runc"},
		{Name: "nvidia", Program: "/usr/bin/nvidia-container-runtime"}}
	return s
}

// What a reload of systemd takes from a container depends on where its GPUs and HCAs are from
// (NVIDIA/gpu-operator#485, NVIDIA/nvidia-container-toolkit#1553).
func TestFix_reloadOfSystemd(t *testing.T) {
	for name, test := range map[string]struct {
		alter func(s *sick)
		takes bool
	}{
		"GPUs by the hook of the default handler": {func(*sick) {}, true},
		"by the hook of a handler that its pod names": {func(s *sick) {
			s.runtime().DefaultHandler, s.container().Handler = "runc", "nvidia"
		}, true},
		"the GPU Operator's program": {func(s *sick) {
			s.runtime().Handlers[1].Program = "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy"
		}, true},
		"HCAs by the hook, and GPUs by the spec": {func(s *sick) {
			s.container().GPUs, s.container().Env["NVIDIA_MOFED"] = []int{0}, "enabled"
		}, true},
		"no GPU, and HCAs by the hook": {func(s *sick) {
			s.container().Env = cri.Env{"NVIDIA_VISIBLE_DEVICES": "none", "NVIDIA_MOFED": "enabled"}
		}, true},
		"CRI-O, which runs hooks by itself": {func(s *sick) {
			s.runtime().Name, s.runtime().Version, s.runtime().DefaultHandler = runtime.NameCRIO, "1.34.0", "crun"
			s.runtime().Handlers = []runtime.Handler{{Name: "crun", Program: "crun 1.20"}}
		}, true},
		"a runtime whose handlers are unknown": {func(s *sick) {
			s.runtime().Known, s.runtime().Handlers = false, nil
		}, true},
		"a runtime that does not list its containers": {func(s *sick) {
			s.containers.Containers, s.unanswered = nil, []string{"listing.json"}
		}, true},
		"GPUs by a hook, which systemd's unit does not have": {func(s *sick) {
			s.scope = &process.Scope{Devices: []string{"/dev/char/1:3"}}
		}, true},
		// seen in opencontainers/runc#3671
		"GPUs by the spec, which runc 1.1.3 kept from systemd's unit": {func(s *sick) {
			s.container().GPUs, s.scope = []int{0}, &process.Scope{Devices: []string{"/dev/char/1:3"}}
		}, true},
		"HCAs by the hook, and systemd's unit has the GPUs alone": {func(s *sick) {
			s.container().Env["NVIDIA_MOFED"], s.scope = "enabled", &process.Scope{Devices: []string{"/dev/char/195:0"}}
		}, true},
		// seen in HabanaAI/habana-container-runtime
		"accelerators by the hook of Habana's runtime": {func(s *sick) {
			s.runtime().Handlers[1].Program = "/usr/bin/habana-container-runtime"
			s.container().Env = cri.Env{"HABANA_VISIBLE_DEVICES": "all"}
		}, true},
		// seen in NVIDIA/nvidia-container-toolkit#910
		"mode jit-cdi, whose devices are in systemd's unit": {func(s *sick) {
			s.scope = &process.Scope{Devices: []string{"/dev/char/195:0", "/dev/char/195:255"}}
		}, false},
		// seen in dstackai/dstack#2601
		"the cgroup driver cgroupfs": {func(s *sick) { s.scope = &process.Scope{Untouched: true} }, false},
		"HCAs by the hook, and cgroupfs": {func(s *sick) {
			s.container().Env["NVIDIA_MOFED"], s.scope = "enabled", &process.Scope{Untouched: true}
		}, false},
		"accelerators by Habana's runtime, which asks for none": {func(s *sick) {
			s.runtime().Handlers[1].Program, s.container().Env = "habana-container-runtime", nil
		}, false},
		"AMD's runtime, which changes the spec": {func(s *sick) {
			s.runtime().Handlers[1].Program, s.container().Env = "amd-container-runtime", cri.Env{"AMD_VISIBLE_DEVICES": "all"}
		}, false},
		"GPUs by the spec, as CDI or a device plugin gives them": {func(s *sick) { s.container().GPUs = []int{0, 1} }, false},
		"NVIDIA's runtime in mode cdi": {func(s *sick) {
			s.runtime().Handlers[1].Program = "nvidia-container-runtime.cdi"
		}, false},
		"an image that asks for GPUs, under runc": {func(s *sick) { s.runtime().DefaultHandler = "runc" }, false},
		"a privileged container":                  {func(s *sick) { s.container().AllDevices = true }, false},
		"no GPU":                                  {func(s *sick) { s.container().Env = nil }, false},
		"a variable that asks for nothing":        {func(s *sick) { s.container().Env["NVIDIA_VISIBLE_DEVICES"] = "void" }, false},
		"no handler that hooks, and no list": {func(s *sick) {
			s.runtime().DefaultHandler, s.runtime().Handlers = "runc", s.runtime().Handlers[:1]
			s.containers.Containers, s.unanswered = nil, []string{"listing.json"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := hooked()
			test.alter(s)
			bad := wrong(s.look(t, software()))
			if len(bad) == 0 {
				t.Fatal("nothing is wrong")
			}
			for _, f := range bad {
				reloads := strings.Contains(f.Fix, "daemon-reload")
				if launched := strings.Contains(f.Fix, "--launched"); launched != test.takes || launched == reloads {
					t.Errorf("%s", f.Fix)
				}
				if !test.takes && f.FixType != doctor.FixSafe || test.takes && f.FixType == doctor.FixSafe {
					t.Errorf("%s: %s (%s)", f.FixType, f.Fix, f.Warning)
				}
			}
		})
	}
}

// What else reloads systemd is never safe there: limits of the runtime's own unit.
func TestRuntimeRlimits_reloadIsDisruptive(t *testing.T) {
	s := hooked()
	s.plugin, s.runtime().Startable = healthy().plugin, bytesOf(8<<20)
	for _, f := range wrong(s.look(t, software())) {
		if f.Check == "runtime-rlimits" && (f.FixType != doctor.FixDisruptive || !strings.Contains(f.Warning, "ml/train-0 worker")) {
			t.Errorf("%s: %s (%s)", f.FixType, f.Fix, f.Warning)
		}
	}
}

// commands are the fixes that are commands: what each does, to whom, and a planted fault or a node on which it is
// disruptive. Where there is none, it takes nothing from any node.
var commands = []struct {
	fix, does, whom, disruptive string
}{
	{`^modprobe [a-z_0-9]+ && echo [a-z_0-9]+ > /etc/modules-load.d/`, "loads a module, now and at each boot",
		"nobody: what runs goes on", ""},
	{`^(mkdir -p|rm -rf) /dev/\S+ && mknod `, "makes a device node", "nobody: what has the device open keeps it", ""},
	{`^d=\$\(readlink -f /sys/bus/(auxiliary|pci)/.*unbind.*bind$`, "binds a device's driver again",
		"whatever has the device open", "an HCA that is gone"},
	{`^ip link set \S+ up$`, "turns an interface on", "nobody", ""},
	{`^sysctl -w vm\.max_map_count`, "raises a limit of the kernel", "nobody", ""},
	{`^rdma-spec repair `, "raises the limits of processes", "nobody", ""},
	{`^rdma-spec configure plugin && systemctl daemon-reload`, "installs the plugin as a service",
		"containers whose GPUs came by NVIDIA's hook, which get the next row instead", ""},
	{`^rdma-spec configure plugin --launched && `, "installs the plugin for the runtime to launch, and restarts it",
		"exec sessions", "GPUs by a hook"},
	{`^rdma-spec configure (nri|handler .*?)( --config \S+)? --restart`, "changes the runtime's configuration, and restarts it",
		"exec sessions", "NRI is off"},
	{`^rdma-spec configure limits \S+ --restart`, "sets a limit of a unit, reloads systemd, and restarts the unit",
		"exec sessions, and containers whose GPUs came by NVIDIA's hook", "a runtime that may not raise limits"},
	{`^rdma-spec configure (limits|plugin|cdi)( \S+)?$`, "writes files again, and prints what is to be done then", "nobody", ""},
	{`^rdma-spec generate --(to|for) .* && systemctl restart `, "writes a file of the runtime, and restarts it",
		"exec sessions", "a base spec that is missing"},
	{`^sed -i .*ociVersion.* && systemctl restart `, "changes a file of the runtime, and restarts it", "exec sessions",
		"a base spec of a version that crun refuses"},
	{`^(\$\(sed -n 's/\^# Made with: //p' \S+\) --to|rdma-spec cdi generate --to) `, "writes a CDI file again",
		"nobody: containers that run have their devices", ""},
	{`^kubectl -n rdma-spec logs nri-rdma-\d+ --tail 20; kubectl -n rdma-spec delete pod nri-rdma-\d+$`,
		"shows the log, which ends with the pod, and makes the plugin's pod of this node again", "nobody", ""},
	{`^kubectl -n rdma-spec delete pod nri-rdma-\d+$`, "makes the plugin's pod of this node again",
		"RDMA containers that start meanwhile, where the plugin is registered", "the policy in force of the DaemonSet is garbage"},
	{`^kubectl -n \S+ delete pod \S+$`, "makes a pod again", "the pod's programs", "an HCA that was made anew"},
	{`^sync && echo 3 > /proc/sys/vm/drop_caches && `, "frees caches of the kernel", "programs, which read files again",
		"free memory in CMA alone"},
	{`^ip link set dev \S+ vf \d+ .* > \$d/bind$`, "gives a virtual function an address, and binds its driver again",
		"the pod that has it", "a virtual function without a GUID on Ethernet"},
	{`^echo 'options ib_core netns_mode=0' > .* && rdma system set netns exclusive `, "sets the mode of network namespaces",
		"pods that share HCAs", "shared mode with rdma-cni"},
	{`^echo '\S+ hca_\w+=max' > /sys/fs/cgroup/`, "takes a pod's limit of RDMA objects away", "pods that share the HCA",
		"a pod at its limit of HCA handles"},
	{`^rm /opt/nri/plugins/\S+ && systemctl restart `, "removes a plugin, and restarts the runtime",
		"pods that ask it for something, and exec sessions", "ulimit-adjuster is launched"},
	{`^systemctl restart (nri-rdma|nri-rdma-validator|kubelet)$`, "restarts a daemon", "nobody: containers do not notice", ""},
	{`^systemctl restart (containerd|crio|k3s|k3s-agent)$`, "restarts the runtime", "exec sessions", "the socket of NRI is gone"},
}

// weighed returns the row of a fix, or a number below 0 if it has none.
func weighed(fix string) int {
	return slices.IndexFunc(commands, func(c struct{ fix, does, whom, disruptive string }) bool {
		return regexp.MustCompile(c.fix).MatchString(fix)
	})
}

// Each fix that is a command, of all nodes that are planted, is one of those that were weighed, and is safe exactly
// where its row says.
func TestCommandsAreWeighed(t *testing.T) {
	all, seen := map[string][]doctor.Finding{}, map[string]bool{}
	for _, p := range faults() {
		all[p.name] = wrong(p.look(t))
	}
	for _, k := range sickKinds {
		all[k.name] = wrong(findings(t, fallenSick(t, k.of, k.without, k.with)))
	}
	for name, test := range elsewheres {
		s := test.node()
		test.alter(s)
		all[name] = wrong(s.look(t, checks()))
	}
	for name, plant := range memlockCauses {
		s := healthy()
		plant(s)
		all[name] = wrong(s.look(t, software()))
	}
	all["GPUs by a hook"] = wrong(hooked().look(t, software()))
	disrupts := map[string][]string{} // by row, the nodes on which it is disruptive
	for name, found := range all {
		for _, f := range found {
			if f.FixType == doctor.FixManual {
				continue
			}
			i := weighed(f.Fix)
			switch {
			case i < 0:
				t.Errorf("%s: no row for %s: %s", name, f.FixType, f.Fix)
			case i >= 0:
				seen[commands[i].fix] = true
				if f.FixType == doctor.FixDisruptive {
					disrupts[commands[i].fix] = append(disrupts[commands[i].fix], name)
				}
			}
		}
	}
	for _, c := range commands {
		with := disrupts[c.fix]
		if !seen[c.fix] || (len(with) > 0) != (c.disruptive != "") || len(with) > 0 && !slices.Contains(with, c.disruptive) {
			t.Errorf("%s: seen %t, disruptive on %q, and its row has %q", c.fix, seen[c.fix], with, c.disruptive)
		}
	}
}
