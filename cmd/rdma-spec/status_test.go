// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// containerID returns the ID of the container that has a number.
func containerID(n int) string { return fmt.Sprintf("%064x", n) }

// holder is a container with the verbs device of the V100 node's HCA that has a number, and with a process of that
// number.
func holder(n, hca int, pod string, rlimits ...specs.POSIXRlimit) critest.Container {
	c := other(n, pod)
	c.Spec.Process.Rlimits = rlimits
	c.Spec.Linux.Devices = []specs.LinuxDevice{{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", hca), Type: "c", Major: 231,
		Minor: int64(192 + hca)}}
	return c
}

// other is a container without devices.
func other(n int, pod string) critest.Container {
	return critest.Container{Namespace: "ml", Pod: pod, Name: "main", ID: containerID(n), PID: n, Spec: specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{
			"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		}}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false,
			Access: "rwm"}}}},
	}}
}

// large has a spec of 20 KB, as containerd writes it.
func large(c critest.Container) critest.Container {
	for i := range 200 {
		c.Spec.Process.Env = append(c.Spec.Process.Env,
			fmt.Sprintf("SERVICE_%d_PORT=tcp://10.96.%d.%d:443/with/some/path/behind/it/that/takes/room", i, i/250, i%250))
	}
	return c
}

func memlockOf(bytes uint64) specs.POSIXRlimit {
	return specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: bytes, Hard: bytes}
}

// addProcess adds a process of a container to a node's files.
func addProcess(files hcatest.Files, n int, memlock string, capabilities string) {
	at := fmt.Sprintf("proc/%d/", n)
	files[at+"cgroup"] = "0::/kubepods/" + containerID(n) + "\n"
	files[at+"limits"] = "Max locked memory         " + memlock + " bytes     \n"
	files[at+"status"] = "Name:\tmain\nCapEff:\t" + capabilities + "\n"
	files[at+"uid_map"] = "         0          0 4294967295\n"
}

const ipcLocked, plain = "0000000000004000", "00000000a80425fb"

// mixedNode is a node with a container of every kind, and the root with its files.
func mixedNode() (root hcatest.Files, containers []critest.Container) {
	files := hcatest.V100Node().Files()
	add := func(c critest.Container, memlock, capabilities string) {
		if memlock != "" {
			addProcess(files, c.PID, memlock, capabilities)
		}
		containers = append(containers, c)
	}
	add(holder(1, 0, "train-0"), "unlimited unlimited", ipcLocked)
	add(holder(2, 1, "train-1"), "8388608 unlimited", plain)
	both := holder(3, 0, "two-hcas")
	both.Spec.Linux.Devices = append(both.Spec.Linux.Devices, holder(3, 1, "").Spec.Linux.Devices...)
	add(both, "unlimited unlimited", plain)
	inside := holder(4, 0, "user-namespace")
	inside.Spec.Process.Capabilities.Bounding = append(inside.Spec.Process.Capabilities.Bounding, spec.CapIPCLock)
	add(inside, "65536 65536", ipcLocked)
	files["proc/4/uid_map"] = "0 100000 65536\n"
	add(other(5, "unrelated"), "8388608 8388608", plain)
	annotated := other(6, "annotated")
	annotated.Annotations = map[string]string{"rdma.noderesource.dev": "true"}
	add(annotated, "unlimited unlimited", plain)
	optedOut := holder(7, 0, "opted-out")
	optedOut.Annotations = map[string]string{"rdma.noderesource.dev": "false"}
	add(optedOut, "8388608 8388608", plain)
	denied := holder(8, 0, "guest")
	denied.Namespace = "guest-a"
	add(denied, "8388608 8388608", plain)
	limited := holder(9, 0, "sixteen")
	limited.Namespace = "small"
	add(limited, "17179869184 17179869184", ipcLocked)
	add(holder(10, 1, "unseen", memlockOf(math.MaxUint64)), "", "")
	add(holder(11, 1, "unseen-low", memlockOf(65536)), "", "")
	add(holder(12, 1, "nobody-knows"), "", "")
	privileged := other(13, "privileged")
	privileged.Annotations = map[string]string{"rdma.noderesource.dev": "true"}
	privileged.Namespace = "listed"
	privileged.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	add(privileged, "8388608 8388608", plain)
	empty := other(14, "without-devices")
	empty.Annotations = privileged.Annotations
	empty.Namespace = "listed"
	add(empty, "unlimited unlimited", ipcLocked)
	dropped := holder(15, 0, "dropped")
	dropped.Spec.Process.Capabilities.Bounding = nil
	add(dropped, "unlimited unlimited", "0000000000000000")
	vm := holder(16, 0, "vm")
	vm.Handler = "kata-qemu"
	add(vm, "8388608 8388608", plain)
	broken := other(17, "broken")
	broken.Info = "{"
	add(broken, "", "")
	return files, containers
}

const mixedConfig = `
inject: {namespaces: [listed]}
rules:
- {name: guests, match: {namespaces: [guest-*]}, memlock: memory-limit}
- {name: small, match: {namespaces: [small]}, memlock: 16Gi}
`

// serve serves containers, and returns the flags to look at them and below a root.
func serve(t *testing.T, root string, containers ...critest.Container) (flags []string) {
	t.Helper()
	return []string{"--root", root, "--runtime-endpoint", critest.Serve(t, critest.Options{}, containers...).Socket}
}

// by returns flags with those of a configuration before them.
func by(t *testing.T, config string, flags []string) []string {
	t.Helper()
	return append([]string{"--config", configFile(t, config)}, flags...)
}

func TestStatus(t *testing.T) {
	files, containers := mixedNode()
	root := files.Root(t)
	names := map[string]string{"ROOT": root, "SOCKET": critest.Serve(t, critest.Options{}, containers...).Socket,
		"CONFIG": configFile(t, mixedConfig)}
	compareCalls(t, "status/mixed", names, `
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET -o json
		# what containers lack is no failure of a report, and a node without a plugin is
		status --config CONFIG --root ROOT --runtime-endpoint SOCKET --report
		status --root ROOT --runtime-endpoint SOCKET --report`)
}

// What status and repair say of nodes where all is well, little is known, or nothing runs, and their exit statuses.
func TestStatusOutcomes(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "unlimited unlimited", ipcLocked)
	addProcess(files, 4, "8388608 8388608", plain)
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "")
	root := files.Root(t)
	good, unrelated, sick := holder(1, 0, "train-0"), other(2, "unrelated"), holder(3, 0, "sick")
	sick.Fails = errors.New("its shim does not answer")
	mofed := other(5, "mofed") // which is looked at twice
	mofed.Spec.Process.Env = []string{"NVIDIA_MOFED=enabled"}
	names := map[string]string{"NODE": root, "NOTHING": scratch.Folder(t),
		"EMPTY": configFile(t, "{}"), "WRONG": configFile(t, "memlok: 1"), "RESOURCES": configFile(t, "optIn: {resources: [rdma/*]}")}
	for name, runtime := range map[string]*critest.Runtime{
		"CRI-O":     critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"}, good),
		"UNRELATED": critest.Serve(t, critest.Options{}, unrelated),
		"SICK":      critest.Serve(t, critest.Options{}, good, sick),
		"LOW":       critest.Serve(t, critest.Options{}, holder(4, 0, "low")),
		"SEVERAL":   critest.Serve(t, critest.Options{}, unrelated, mofed),
	} {
		names[name] = runtime.Socket
	}
	compareCalls(t, "status/outcomes", names, `
		status --config EMPTY --root NODE --runtime-endpoint CRI-O
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED -o json
		status --config EMPTY --root NODE --runtime-endpoint UNRELATED ml/unrelated
		repair --config EMPTY --root NODE --runtime-endpoint LOW --dry-run -o json

		# a runtime that does not answer for one container says nothing about the others, and that one is unknown
		status --config EMPTY --root NODE --runtime-endpoint SICK
		status --config EMPTY --root NODE --runtime-endpoint SICK ml/train-0
		status --config EMPTY --root NODE --runtime-endpoint SICK ml/train-0 ml/elsewhere
		repair --config EMPTY --root NODE --runtime-endpoint SICK --dry-run

		# where the kubelet does not answer, an empty list does not mean that there is no RDMA container
		status --config RESOURCES --root NODE --runtime-endpoint SEVERAL
		status --config RESOURCES --root NODE --runtime-endpoint SEVERAL ml/unrelated
		repair --config RESOURCES --root NODE --runtime-endpoint SEVERAL

		# without a policy in force and without --config, nothing is judged by the defaults, which give more than any policy
		status --root NODE --runtime-endpoint CRI-O
		repair --dry-run --root NODE --runtime-endpoint CRI-O
		repair --root NODE --runtime-endpoint CRI-O

		status --config EMPTY --root NOTHING
		status --root NOTHING
		status --config EMPTY --runtime-endpoint /nonexistent.sock
		status --config WRONG
		status --config /nonexistent.yaml`)
	several := []string{"ml/unrelated", "--config", names["RESOURCES"], "--root", root, "--runtime-endpoint", names["SEVERAL"]}
	there, here := words("status", several...), words("status ml/unrelated", "--root", collected(t, root, several[1:]...))
	if diff := cmp.Diff(there, here); diff != "" {
		t.Errorf("-there +here:\n%s", diff)
	}
	// The containers of all runtimes count: those of k3s beside Docker's containerd, which does not serve CRI.
	critest.Serve(t, critest.Options{NoCRI: true, Root: root, Path: "run/containerd/containerd.sock"})
	critest.Serve(t, critest.Options{Root: root, Path: "run/k3s/containerd/containerd.sock"}, good)
	compareCalls(t, "status/several-runtimes", names, `
		status --config EMPTY --root NODE
		repair --dry-run --config EMPTY --root NODE`)
}

// However CNI gives a pod an interface of its HCA, status names the HCA.
func TestStatusOfNetworks(t *testing.T) {
	for name, test := range map[string]struct {
		files hcatest.Files
		held  int
	}{
		"host-device":                 {hcatest.HostDeviceNode().Files(), 0},
		"SR-IOV":                      {hcatest.VirtualNode().Files(), 1},
		"SR-IOV, rdma-cni, exclusive": {hcatest.ExclusiveFiles("mlx5_0", "mlx5_2"), 1},
	} {
		addProcess(test.files, 1, "unlimited unlimited", ipcLocked)
		got := words("status", by(t, "{}", serve(t, test.files.Root(t), holder(1, test.held, "train-0")))...)
		want := fmt.Sprintf("ml/train-0  main       device  unlimited  yes       mlx5_%d  unknown  ok     -\n", test.held)
		if got.Status != 0 || !strings.HasSuffix(got.Stdout, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// status and repair judge alike, by all processes and the stored spec.
func TestStatusAndRepairAgree(t *testing.T) {
	files := hcatest.V100Node().Files()
	var containers []critest.Container
	below := map[string]bool{}
	add := func(c critest.Container, isBelow bool, processes ...string) {
		containers = append(containers, c)
		below[c.Pod] = isBelow
		for i, memlock := range processes {
			n := c.PID + 1000*i
			addProcess(files, n, memlock, plain)
			files[fmt.Sprintf("proc/%d/cgroup", n)] = "0::/kubepods/" + c.ID + "\n"
		}
	}
	const high, low = "unlimited unlimited", "8388608 8388608"
	enough, little := memlockOf(math.MaxUint64), memlockOf(65536)
	add(holder(1, 0, "good", enough), false, high, high)
	add(holder(2, 0, "low"), true, low)
	add(holder(3, 0, "low-child"), true, high, high, low)
	add(holder(4, 0, "low-spec", little), true, high)
	add(holder(5, 0, "spec-without"), false, high)
	add(holder(6, 0, "lowered-itself", enough), false, high, "8388608 unlimited")
	add(holder(7, 0, "lowered-for-good", enough), false, high, low)
	add(holder(8, 0, "signed", memlockOf(math.MaxInt64)), false, "9223372036854775807 9223372036854775807")
	node := by(t, "{}", serve(t, files.Root(t), containers...))
	listed, repair := words("status -o json", node...), words("repair --dry-run", node...)
	var seen struct {
		Containers []struct {
			Pod, State string
			Problems   []string
		}
	}
	if err := json.Unmarshal([]byte(listed.Stdout), &seen); err != nil || listed.Status != 1 || repair.Status != 1 ||
		len(seen.Containers) != len(below) {
		t.Fatalf("%v: status: %+v\nrepair --dry-run: %+v", err, listed, repair)
	}
	for _, c := range seen.Containers {
		if (c.State == "below") != below[c.Pod] || c.State != "below" && c.State != "ok" {
			t.Errorf("status: %s is %s, %v", c.Pod, c.State, c.Problems)
		}
		if raised := strings.Contains(repair.Stdout, "ml/"+c.Pod+" main: memlock would be raised"); raised != below[c.Pod] {
			t.Errorf("repair --dry-run raises %s: %v", c.Pod, raised)
		}
		for _, problem := range c.Problems { // the hint can be pasted, and is about the same node and policy
			_, hint, _ := strings.Cut(problem, ": rdma-spec ")
			if got := words(hint, "--dry-run"); got.Status != 1 || strings.Count(got.Stdout, "\n") != 1 ||
				!strings.HasPrefix(got.Stdout, "ml/"+c.Pod+" main: ") {
				t.Errorf("%s: %+v", hint, got)
			}
		}
	}
}

// status and repair need less than a second for 500 containers: in CPU time, since the machine has others to serve. On
// a machine so slow that a node without containers takes 40 ms and more, they may take 25 times that.
func TestFiveHundredContainers(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time")
	}
	files, processes := hcatest.V100Node().Files(), &limitstest.Kernel{Table: map[int]*limitstest.Process{}}
	var containers []critest.Container
	for n := 1; n <= 500; n++ {
		addProcess(files, n, "unlimited unlimited", ipcLocked)
		processes.Table[n] = limitstest.NewProcess(containerID(n), spec.Unlimited)
		c := holder(n, n%2, fmt.Sprintf("train-%d", n), memlockOf(math.MaxUint64))
		containers = append(containers, large(c))
	}
	root, policy := files.Root(t), configFile(t, "{}")
	busy, idle := critest.Serve(t, critest.Options{}, containers...), critest.Serve(t, critest.Options{})
	const tries = 3 // the machine may be busy with other tests
	status, repair, alone := time.Hour, time.Hour, time.Hour
	for range tries {
		stdout, took, _ := costOf(t, "status", "--config", policy, "--root", root, "--runtime-endpoint", busy.Socket)
		status = min(status, took)
		if lines := strings.Count(stdout, "\n"); lines != 501 {
			t.Fatalf("status prints %d lines", lines)
		}
		_, took, _ = costOf(t, "status", "--config", policy, "--root", root, "--runtime-endpoint", idle.Socket)
		alone = min(alone, took)
		// repair refuses a copied root. What it needs in this process counts with what the runtime needs.
		before := cpuTime(t)
		stdout, _, err := repairRun(t, busy.Socket, processes, true)
		repair = min(repair, cpuTime(t)-before)
		if err != nil || stdout != "nothing to raise: looked at 500 RDMA containers\n" {
			t.Fatalf("repair: %v, %q", err, stdout)
		}
	}
	t.Logf("CPU time: status %s, repair %s; status without containers %s", status, repair, alone)
	if most := max(time.Second, 25*alone); max(status, repair) > most {
		t.Errorf("CPU time: status %s, repair %s, want %s at most", status, repair, most)
	}
	if busy.Asked() != 2*tries*500 {
		t.Errorf("the runtime was asked about %d containers", busy.Asked())
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
