// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// busyNode is a node with eight HCAs and 200 containers, 80 of which hold an HCA, and each of which has a shim beside
// its process.
func busyNode() (files hcatest.Files, containers []critest.Container) {
	files = hcatest.EightHCANode().Files()
	mounts := "31 30 0:6 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n"
	for i := range 40 { // those that a runtime and a kubelet make
		mounts += fmt.Sprintf("%d 30 0:%d /var/lib/kubelet/pods/%064x/volumes /var/run/some/place/%d rw,nosuid,relatime - "+
			"tmpfs tmpfs rw,size=1024k\n", 40+i, i, i, i)
	}
	for n := 1; n <= 200; n++ {
		addProcess(files, n, "unlimited unlimited", ipcLocked)
		c := other(n, fmt.Sprintf("web-%d", n))
		if n <= 80 {
			c = holder(n, n%8, fmt.Sprintf("train-%d", n), memlockOf(math.MaxUint64))
		}
		for i := range 200 { // a spec as containerd writes it has 20 KB
			c.Spec.Process.Env = append(c.Spec.Process.Env,
				fmt.Sprintf("SERVICE_%d_PORT=tcp://10.96.%d.%d:443/with/some/path/behind/it/that/takes/room", i, i/250, i%250))
		}
		containers = append(containers, c)
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

// costOf calls the program, and returns the CPU time and the memory that it needed.
func costOf(t *testing.T, args ...string) (stdout string, time time.Duration, memory int) {
	t.Helper()
	status := filepath.Join(scratch.Folder(t), "status")
	program := exec.Command(os.Args[0], args...)
	program.Env = append(os.Environ(), memoryInto+"="+status)
	out, _ := program.Output() // the exit status tells what was found
	_, most, _ := strings.Cut(scratch.Read(t, status), "\nVmHWM:")
	if _, err := fmt.Sscan(most, &memory); err != nil {
		t.Fatal(err)
	}
	return string(out), program.ProcessState.UserTime() + program.ProcessState.SystemTime(), memory << 10
}

// The doctor needs less than 300 ms and 40 MB on a node with eight HCAs and 200 containers: in CPU time, since the
// machine has others to serve. On a machine so slow that a node without containers takes 40 ms and more, it may take
// eight times that.
func TestDoctorCosts(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time and memory")
	}
	files, containers := busyNode()
	root, policy := files.Root(t), configFile(t, "{}")
	busy, idle := critest.Serve(t, critest.Options{}, containers...), critest.Serve(t, critest.Options{})
	const tries = 20 // the machine may be busy with other tests
	least, alone, memory := time.Hour, time.Hour, math.MaxInt
	cheap := func() bool { return least <= max(300*time.Millisecond, 8*alone) && memory <= 40e6 }
	for try := 0; try < tries && !cheap(); try++ {
		stdout, took, needed := costOf(t, "doctor", "-o", "json", "--patience", "1m", "--config", policy, "--root", root,
			"--runtime-endpoint", busy.Socket)
		if strings.Count(stdout, "container ml/") < 80 {
			t.Fatal(stdout)
		}
		least, memory = min(least, took), min(memory, needed)
		_, took, _ = costOf(t, "doctor", "--config", policy, "--root", root, "--runtime-endpoint", idle.Socket)
		alone = min(alone, took)
	}
	t.Logf("%s of CPU time, %d MB; without containers %s", least, memory/1e6, alone)
	if !cheap() {
		t.Errorf("%s of CPU time, %d MB; without containers %s", least, memory/1e6, alone)
	}
}
