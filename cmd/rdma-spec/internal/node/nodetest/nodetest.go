// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodetest provides fake nodes with containers for tests of commands: the runtimes' responses, and the files of
// the containers' processes.
package nodetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// ContainerID returns the ID of the container with this number.
func ContainerID(n int) string { return fmt.Sprintf("%064x", n) }

// Holder returns container n, which has the verbs device of an HCA of the V100 node. hca is the HCA's number. The PID
// of its process is n.
func Holder(n, hca int, pod string, rlimits ...specs.POSIXRlimit) critest.Container {
	c := Other(n, pod)
	c.Spec.Process.Rlimits = rlimits
	c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", hca), Type: "c", Major: 231,
		Minor: int64(192 + hca)}}
	return c
}

// Other returns container n, which has no devices.
func Other(n int, pod string) critest.Container {
	return critest.Container{Namespace: "ml", Pod: pod, Name: "main", ID: ContainerID(n), PID: n, Spec: specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{
			"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		}}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false,
			Access: "rwm"}}}},
	}}
}

// Large returns the container with a spec of 20 KB, the size that containerd writes.
func Large(c critest.Container) critest.Container {
	for i := range 200 {
		c.Spec.Process.Env = append(c.Spec.Process.Env,
			fmt.Sprintf("SERVICE_%d_PORT=tcp://10.96.%d.%d:443/with/some/path/behind/it/that/takes/room", i, i/250, i%250))
	}
	return c
}

// Memlock returns the rlimit in the format of an OCI spec, with equal soft and hard limits.
func Memlock(bytes uint64) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: bytes, Hard: bytes}
}

// AddProcess adds the process of container n to a node's files.
func AddProcess(files hcatest.Files, n int, memlock string, capabilities string) {
	at := fmt.Sprintf("proc/%d/", n)
	files[at+"cgroup"] = "0::/kubepods/" + ContainerID(n) + "\n"
	files[at+"limits"] = "Max locked memory         " + memlock + " bytes     \n"
	files[at+"status"] = "Name:\tmain\nCapEff:\t" + capabilities + "\n"
	files[at+"uid_map"] = "         0          0 4294967295\n"
}

// Effective capabilities of a process, in the format of /proc/PID/status.
const (
	IPCLocked = "0000000000004000" // with CAP_IPC_LOCK
	Plain     = "00000000a80425fb" // a container's default capabilities
)

// Mixed returns the files of a node that runs a container of each kind, and the containers.
func Mixed() (root hcatest.Files, containers []critest.Container) {
	files := hcatest.V100Node().Files()
	add := func(c critest.Container, memlock, capabilities string) {
		if memlock != "" {
			AddProcess(files, c.PID, memlock, capabilities)
		}
		containers = append(containers, c)
	}
	add(Holder(1, 0, "train-0"), "unlimited unlimited", IPCLocked)
	add(Holder(2, 1, "train-1"), "8388608 unlimited", Plain)
	both := Holder(3, 0, "two-hcas")
	both.Spec.Linux.Devices = append(both.Spec.Linux.Devices, Holder(3, 1, "").Spec.Linux.Devices...)
	add(both, "unlimited unlimited", Plain)
	inside := Holder(4, 0, "user-namespace")
	inside.Spec.Process.Capabilities.Bounding = append(inside.Spec.Process.Capabilities.Bounding, spec.CapIPCLock)
	add(inside, "65536 65536", IPCLocked)
	files["proc/4/uid_map"] = "0 100000 65536\n"
	add(Other(5, "unrelated"), "8388608 8388608", Plain)
	annotated := Other(6, "annotated")
	annotated.Annotations = map[string]string{"rdma.noderesource.dev": "true"}
	add(annotated, "unlimited unlimited", Plain)
	optedOut := Holder(7, 0, "opted-out")
	optedOut.Annotations = map[string]string{"rdma.noderesource.dev": "false"}
	add(optedOut, "8388608 8388608", Plain)
	denied := Holder(8, 0, "guest")
	denied.Namespace = "guest-a"
	add(denied, "8388608 8388608", Plain)
	limited := Holder(9, 0, "sixteen")
	limited.Namespace = "small"
	add(limited, "17179869184 17179869184", IPCLocked)
	add(Holder(10, 1, "unseen", Memlock(math.MaxUint64)), "", "")
	add(Holder(11, 1, "unseen-low", Memlock(65536)), "", "")
	add(Holder(12, 1, "nobody-knows"), "", "")
	privileged := Other(13, "privileged")
	privileged.Annotations = map[string]string{"rdma.noderesource.dev": "true"}
	privileged.Namespace = "listed"
	privileged.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	add(privileged, "8388608 8388608", Plain)
	empty := Other(14, "without-devices")
	empty.Annotations = privileged.Annotations
	empty.Namespace = "listed"
	add(empty, "unlimited unlimited", IPCLocked)
	dropped := Holder(15, 0, "dropped")
	dropped.Spec.Process.Capabilities.Bounding = nil
	add(dropped, "unlimited unlimited", "0000000000000000")
	vm := Holder(16, 0, "vm")
	vm.Handler = "kata-qemu"
	add(vm, "8388608 8388608", Plain)
	broken := Other(17, "broken")
	broken.Info = "{"
	add(broken, "", "")
	return files, containers
}

// MixedConfig is the policy for the node Mixed.
const MixedConfig = `
inject: {namespaces: [listed]}
rules:
- {name: guests, match: {namespaces: [guest-*]}, memlock: memory-limit}
- {name: small, match: {namespaces: [small]}, memlock: 16Gi}
`

// Serve starts a runtime with these containers. It returns the flags with which a command reads the runtime and the
// node below root.
func Serve(t testing.TB, root string, containers ...critest.Container) (flags []string) {
	t.Helper()
	return []string{"--root", root, "--runtime-endpoint", critest.Serve(t, critest.Options{}, containers...).Socket}
}

// By returns the flags, preceded by flags that set a configuration.
func By(t testing.TB, config string, flags []string) []string {
	t.Helper()
	return append([]string{"--config", clitest.File(t, config)}, flags...)
}

// The status of this process on a node of Using, and a number of bytes.
const (
	SelfStatus = "proc/4000/status"
	Gibi       = 1 << 30
)

// Self returns the status file of this process. The kernel's RDMA inventory covers this process's PID namespace.
func Self() []byte { return fmt.Appendf(nil, "NSpid:\t%d\n", os.Getpid()) }

// AddUser adds the process of container n, which has pinned this many bytes.
func AddUser(files hcatest.Files, n int, cgroup string, pinned uint64) {
	AddProcess(files, n, "unlimited unlimited", IPCLocked)
	at := fmt.Sprintf("proc/%d/", n)
	files[at+"cgroup"] = "0::" + cgroup + "\n"
	files[at+"status"] = strings.Replace(files[at+"status"], "main\n", "train\n", 1) +
		fmt.Sprintf("Tgid:\t%d\nVmPin:\t%8d kB\n", n, pinned>>10)
	files["proc/self"] = hcatest.Link("4000")
	files[SelfStatus] = string(Self())
}

// Using returns a node whose containers use RDMA in different ways, or not at all: its files, its containers, and the
// kernel's inventory of its HCAs.
func Using() (files hcatest.Files, containers []critest.Container, kernel []rdmatest.HCA) {
	files = hcatest.V100Node().Files()
	add := func(c critest.Container, pinned uint64) {
		c.Started = time.Now().Add(-3 * time.Hour)
		AddUser(files, c.PID, "/kubepods/"+c.ID, pinned)
		containers = append(containers, c)
	}
	add(Holder(1, 0, "idle"), 0)
	add(Holder(2, 1, "busy"), 41*Gibi)
	both := Holder(3, 0, "both")
	both.Spec.Linux.Devices = append(both.Spec.Linux.Devices, Holder(3, 1, "").Spec.Linux.Devices...)
	add(both, Gibi)
	add(Holder(4, 1, "devx"), Gibi)
	add(Holder(5, 1, "opened"), 0)
	small := Holder(6, 1, "full")
	small.Namespace = "small"
	add(small, 15*Gibi+Gibi/5)
	privileged := Other(7, "privileged")
	privileged.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	add(privileged, Gibi)
	idle := Other(8, "privileged-idle")
	idle.Spec = privileged.Spec
	add(idle, 0)
	add(Other(9, "mounted"), Gibi)
	files["proc/9/mountinfo"] = "31 30 0:5 /infiniband /dev/infiniband ro - devtmpfs udev rw\n"
	optedOut := Holder(10, 0, "opted-out")
	optedOut.Annotations = map[string]string{"rdma.noderesource.dev": "false"}
	add(optedOut, Gibi)
	add(Other(11, "unrelated"), Gibi) // io_uring also pins memory
	AddUser(files, 20, "/system.slice/storage.service", Gibi)
	AddUser(files, 21, "/system.slice/docker-"+ContainerID(99)+".scope", Gibi)
	of := func(pid int, state uint8, regions ...uint64) rdmatest.Context {
		return rdmatest.Context{Thread: uint32(pid), RegionThread: uint32(pid), Regions: regions,
			QueuePairs: []uint8{3, 3, state}}
	}
	return files, containers, []rdmatest.HCA{
		{Name: "mlx5_0", Contexts: []rdmatest.Context{of(3, 3, Gibi/2), of(7, 3, Gibi), of(9, 3, Gibi), of(10, 3, Gibi),
			of(20, 3, Gibi)}},
		{Name: "mlx5_1", Contexts: []rdmatest.Context{of(2, 6, 40*Gibi, Gibi), of(3, 5, Gibi/2),
			{Thread: 5}, of(6, 3, 15*Gibi), of(20, 3), of(21, 3, Gibi)}},
	}
}

// Busy returns a node with eight HCAs and 200 containers. 80 containers have an HCA. Each container has a shim process
// in addition to its own process.
func Busy() (files hcatest.Files, containers []critest.Container) {
	files = hcatest.EightHCANode().Files()
	mounts := "31 30 0:6 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n"
	for i := range 40 { // mounts that a runtime and a kubelet create
		mounts += fmt.Sprintf("%d 30 0:%d /var/lib/kubelet/pods/%064x/volumes /var/run/some/place/%d rw,nosuid,relatime - "+
			"tmpfs tmpfs rw,size=1024k\n", 40+i, i, i, i)
	}
	for n := 1; n <= 200; n++ {
		AddProcess(files, n, "unlimited unlimited", IPCLocked)
		c := Other(n, fmt.Sprintf("web-%d", n))
		if n <= 80 {
			c = Holder(n, n%8, fmt.Sprintf("train-%d", n), Memlock(math.MaxUint64))
		}
		containers = append(containers, Large(c))
		for pid, program := range map[int]string{n: "/usr/bin/train", 1000 + n: "/usr/bin/containerd-shim-runc-v2"} {
			at := fmt.Sprintf("proc/%d/", pid)
			maps.Copy(files, hcatest.Files{
				at + "comm": "main\n", at + "exe": hcatest.Link(program), at + "cmdline": program + "\x00--flag\x00",
				at + "mountinfo":    mounts,
				at + "ns/net":       hcatest.Link(fmt.Sprintf("net:[%d]", pid)),
				at + "net/fib_trie": "Local:\n     |-- 10.0.0.9\n        /32 host LOCAL\n", at + "root/usr/lib/": "",
			})
		}
	}
	files["proc/1/ns/net"] = hcatest.Link("net:[1]")
	return files, containers
}

// EightMiB is the memlock of containers on most nodes.
const EightMiB = spec.Limit(8 << 20)

// Low returns the processes and containers of a node: some containers are below policy, some are not, and one is not an
// RDMA container.
func Low() (processes *limitstest.Kernel, containers []critest.Container) {
	processes = &limitstest.Kernel{Table: map[int]*limitstest.Process{}}
	for n, soft := range map[int][]spec.Limit{
		1: {EightMiB, EightMiB, spec.Unlimited}, 2: {spec.Unlimited}, 3: {EightMiB},
		4: {spec.Unlimited, EightMiB}, 5: {spec.Unlimited},
	} {
		for i, limit := range soft { // the PID of the first process is its container's number
			processes.Table[n+100*i] = limitstest.NewProcess(ContainerID(n), limit)
		}
	}
	return processes, []critest.Container{
		Holder(1, 0, "low"), Holder(2, 0, "good"), Other(3, "unrelated"), Holder(4, 1, "low-child"),
		Holder(5, 1, "low-spec", Memlock(65536)),
	}
}

// SpecGist returns the part of an OCI spec that tests compare: the rlimits, the number of capability sets that contain
// CAP_IPC_LOCK, the devices, and the device rules. It returns a text for another platform unchanged, because it is
// short.
func SpecGist(text string) string {
	var s specs.Spec
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return text
	}
	var short strings.Builder
	for _, l := range s.Process.Rlimits {
		fmt.Fprintln(&short, l.Type, l.Soft, l.Hard)
	}
	sets := 0
	if c := s.Process.Capabilities; c != nil {
		for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
			if slices.Contains(set, "CAP_IPC_LOCK") {
				sets++
			}
		}
	}
	fmt.Fprintf(&short, "CAP_IPC_LOCK in %d sets\n", sets)
	for _, d := range s.Linux.Devices {
		fmt.Fprintf(&short, "%s %d:%d\n", d.Path, d.Major, d.Minor)
	}
	if s.Linux.Resources != nil {
		for _, r := range s.Linux.Resources.Devices {
			fmt.Fprintf(&short, "allow %t %s\n", r.Allow, r.Access)
		}
	}
	return short.String()
}
