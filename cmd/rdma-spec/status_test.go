// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
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

func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	scratch.File(t, file, text, 0o644)
	return file
}

// runCommand runs the program and gives what it wrote and its exit status.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, notes bytes.Buffer
	status = run(args, strings.NewReader(""), &out, &notes)
	return out.String(), notes.String(), status
}

func TestStatus(t *testing.T) {
	files, containers := mixedNode()
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, containers...)
	file := configFile(t, mixedConfig)
	for format, name := range map[string]string{"table": "status/mixed.txt", "json": "status/mixed.json"} {
		stdout, stderr, status := runCommand(t, "status", "-o", format, "--config", file, "--root", root,
			"--runtime-endpoint", runtime.Socket)
		if status != 1 {
			t.Errorf("%s: exit status %d, want 1: some are below", format, status)
		}
		text := strings.NewReplacer(file, "CONFIG", root, "ROOT", runtime.Socket, "SOCKET").Replace(stdout +
			"--- stderr\n" + stderr)
		golden.Compare(t, filepath.Join("testdata", name), text)
	}
	// With --report, what containers lack is no failure, and a node without a plugin is.
	args := []string{"status", "--report", "--root", root, "--runtime-endpoint", runtime.Socket}
	for want, more := range map[int][]string{0: {"--config", file}, 3: nil} {
		if _, stderr, status := runCommand(t, append(args, more...)...); status != want {
			t.Errorf("%v: exit status %d, want %d: %s", more, status, want, stderr)
		}
	}
}

func TestStatusWhereAllIsWell(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "unlimited unlimited", ipcLocked)
	root := files.Root(t)
	runtime := critest.Serve(t, critest.Options{Name: "cri-o", Version: "1.36.0"}, holder(1, 0, "train-0"))
	file := configFile(t, "{}")
	stdout, stderr, status := runCommand(t, "status", "--config", file, "--root", root,
		"--runtime-endpoint", runtime.Socket)
	sources := "rdma-spec: policy: " + file + "\nrdma-spec: runtime: cri-o 1.36.0 at " + runtime.Socket + "\n" +
		"rdma-spec: who uses RDMA is unknown: " + root + "/proc is not of this process's PID namespace: run on the node " +
		"itself, or in a pod with hostPID: true, which the DaemonSet's pods have with privileges: repair\n"
	want := "POD         CONTAINER  SIGNAL  MEMLOCK    IPC_LOCK  HCAS    USE      STATE  WHY\n" +
		"ml/train-0  main       device  unlimited  yes       mlx5_0  unknown  ok     -\n"
	if status != 0 || stdout != want || stderr != sources {
		t.Errorf("exit status %d, stderr %q, stdout:\n%s", status, stderr, stdout)
	}
	none := critest.Serve(t, critest.Options{}, other(1, "unrelated"))
	stdout, stderr, status = runCommand(t, "status", "--config", configFile(t, "{}"), "--root", root,
		"--runtime-endpoint", none.Socket)
	if status != 0 || strings.Count(stdout, "\n") != 1 || !strings.HasSuffix(stderr,
		"\nrdma-spec: no RDMA container runs here\n") {
		t.Errorf("none: exit status %d, stderr %q, stdout:\n%s", status, stderr, stdout)
	}
	stdout, _, _ = runCommand(t, "status", "-o", "json", "--config", configFile(t, "{}"), "--root", root,
		"--runtime-endpoint", none.Socket)
	if !strings.Contains(stdout, `"containers": []`) {
		t.Errorf("none: %s", stdout)
	}
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
		runtime := critest.Serve(t, critest.Options{}, holder(1, test.held, "train-0"))
		stdout, stderr, status := runCommand(t, "status", "--config", configFile(t, "{}"), "--root", test.files.Root(t),
			"--runtime-endpoint", runtime.Socket)
		want := fmt.Sprintf("ml/train-0  main       device  unlimited  yes       mlx5_%d  unknown  ok     -\n", test.held)
		if status != 0 || !strings.HasSuffix(stdout, want) {
			t.Errorf("%s: exit status %d, stderr %q, stdout:\n%s", name, status, stderr, stdout)
		}
	}
}

func TestStatusErrors(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		status int
		words  string
	}{
		"no runtime": {[]string{"--config", configFile(t, "{}"), "--root", scratch.Folder(t)}, 3,
			"name it with --runtime-endpoint"},
		"no policy": {[]string{"--root", scratch.Folder(t)}, 3,
			"no such file or directory: start nri-rdma, or name a configuration with --config"},
		"runtime not there": {[]string{"--config", configFile(t, "{}"), "--runtime-endpoint", "/nonexistent.sock"}, 3,
			"cannot connect to the runtime at /nonexistent.sock: no such file or directory"},
		"bad configuration": {[]string{"--config", configFile(t, "memlok: 1")}, 3, `unknown field "memlok"`},
		"no configuration":  {[]string{"--config", "/nonexistent.yaml"}, 3, "cannot read the configuration"},
		"unknown format":    {[]string{"-o", "xml"}, 2, "must be one of table, json, yaml"},
		"argument":          {[]string{"train-0"}, 2, "write NAMESPACE/POD"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, status := runCommand(t, append([]string{"status"}, test.args...)...)
			if status != test.status || stdout != "" || !strings.Contains(stderr, test.words) ||
				strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit status %d, stdout %q, stderr %q; want %d and %q in one line", status, stdout, stderr,
					test.status, test.words)
			}
		})
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
		for i := range 200 { // a spec as containerd writes it has 20 KB
			c.Spec.Process.Env = append(c.Spec.Process.Env,
				fmt.Sprintf("SERVICE_%d_PORT=tcp://10.96.%d.%d:443/with/some/path/behind/it/that/takes/room", i, i/250, i%250))
		}
		containers = append(containers, c)
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
