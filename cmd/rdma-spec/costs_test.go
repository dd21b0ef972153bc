// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// costOf calls the program, and returns the CPU time and the memory that it needed.
func costOf(t *testing.T, args ...string) (stdout string, time time.Duration, memory int) {
	t.Helper()
	status := filepath.Join(scratch.Dir(t), "status")
	program := exec.Command(os.Args[0], args...)
	program.Env = append(os.Environ(), memoryInto+"="+status)
	out, _ := program.Output() // the exit status tells what was found
	_, most, _ := strings.Cut(scratch.Read(t, status), "\nVmHWM:")
	if _, err := fmt.Sscan(most, &memory); err != nil {
		t.Fatal(err)
	}
	return string(out), program.ProcessState.UserTime() + program.ProcessState.SystemTime(), memory << 10
}

// expectCheap checks the CPU time and the memory that calls need on a busy node: the most, or on a slow machine so many
// times what a call takes without containers.
func expectCheap(t *testing.T, most, times time.Duration, memory int, busy func() (time.Duration, int),
	idle func() time.Duration) {
	t.Helper()
	const tries = 20 // the machine may be busy with other tests
	least, alone, needed := time.Hour, time.Hour, math.MaxInt
	cheap := func() bool { return least <= max(most, times*alone) && needed <= memory }
	for try := 0; try < tries && !cheap(); try++ {
		took, used := busy()
		least, needed, alone = min(least, took), min(needed, used), min(alone, idle())
	}
	t.Logf("%s of CPU time, %d MB; without containers %s", least, needed/1e6, alone)
	if !cheap() {
		t.Errorf("%s of CPU time, %d MB; without containers %s", least, needed/1e6, alone)
	}
}

// The doctor needs less than 300 ms and 40 MB on a node with eight HCAs and 200 containers: in CPU time, since the
// machine has others to serve. On a machine so slow that a node without containers takes 40 ms and more, it may take
// eight times that.
func TestDoctor_cost(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time and memory")
	}
	files, containers := nodetest.Busy()
	root, policy := files.Root(t), clitest.File(t, "{}")
	busy, idle := critest.Serve(t, critest.Options{}, containers...), critest.Serve(t, critest.Options{})
	expectCheap(t, 300*time.Millisecond, 8, 40e6, func() (time.Duration, int) {
		stdout, took, needed := costOf(t, "doctor", "-o", "json", "--timeout", "1m", "--config", policy, "--root", root,
			"--runtime-endpoint", busy.Socket)
		if strings.Count(stdout, "container ml/") < 80 {
			t.Fatal(stdout)
		}
		return took, needed
	}, func() time.Duration {
		_, took, _ := costOf(t, "doctor", "--config", policy, "--root", root, "--runtime-endpoint", idle.Socket)
		return took
	})
}

// status and repair need less than a second for 500 containers: in CPU time, since the machine has others to serve. On
// a machine so slow that a node without containers takes 40 ms and more, they may take 25 times that.
func TestStatusAndRepair_cost(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time")
	}
	files, processes := hcatest.V100Node().Files(), &limitstest.Kernel{Table: map[int]*limitstest.Process{}}
	var containers []critest.Container
	for n := 1; n <= 500; n++ {
		nodetest.AddProcess(files, n, "unlimited unlimited", nodetest.IPCLocked)
		processes.Table[n] = limitstest.NewProcess(nodetest.ContainerID(n), spec.Unlimited)
		c := nodetest.Holder(n, n%2, fmt.Sprintf("train-%d", n), nodetest.Memlock(math.MaxUint64))
		containers = append(containers, nodetest.Large(c))
	}
	root, policy := files.Root(t), clitest.File(t, "{}")
	busy, idle := critest.Serve(t, critest.Options{}, containers...), critest.Serve(t, critest.Options{})
	const tries = 3 // the machine may be busy with other tests
	status, repaired, alone := time.Hour, time.Hour, time.Hour
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
		var raised bytes.Buffer
		o := repair.Options{DryRun: true, Format: cli.FormatText, Options: node.Options{Config: policy,
			Root: hcatest.V100(t), Endpoint: busy.Socket, Processes: limits.On(processes)}}
		err := o.Repair(t.Context(), &raised, io.Discard)
		repaired = min(repaired, cpuTime(t)-before)
		if err != nil || raised.String() != "nothing to raise: checked 500 RDMA containers\n" {
			t.Fatalf("repair: %v, %q", err, raised.String())
		}
	}
	t.Logf("CPU time: status %s, repair %s; status without containers %s", status, repaired, alone)
	if most := max(time.Second, 25*alone); max(status, repaired) > most {
		t.Errorf("CPU time: status %s, repair %s, want %s at most", status, repaired, most)
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

// manyRegionsBelow is the variable with the root of a node whose kernel has many memory regions.
const manyRegionsBelow = "RDMA_SPEC_TEST_REGIONS_BELOW"

// manyRegions is a kernel with 100,000 memory regions of 80 containers on eight HCAs.
func manyRegions() []rdmatest.HCA {
	var hcas []rdmatest.HCA
	regions := make([]uint64, 100_000/80)
	for i := range regions {
		regions[i] = 1 << 20
	}
	for i := range 8 {
		h := rdmatest.HCA{Name: fmt.Sprintf("mlx5_%d", i)}
		for n := 1; n <= 80; n++ {
			if n%8 == i {
				h.Contexts = append(h.Contexts, rdmatest.Context{Thread: uint32(n), Regions: regions, RegionThread: uint32(n)})
			}
		}
		hcas = append(hcas, h)
	}
	return hcas
}

// status needs less than a second and 60 MB for 200 containers and 100,000 memory regions: in CPU time, since the
// machine has others to serve, and with what the kernel of the test needs to make its answers. On a machine so slow
// that a node without containers takes 25 ms and more, it may take 40 times that.
func TestStatus_costOfManyRegions(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes its own time and memory")
	}
	files, containers := nodetest.Busy()
	for n := 1; n <= 200; n++ {
		nodetest.AddUser(files, n, "/kubepods/"+nodetest.ContainerID(n), 0)
	}
	root := files.Root(t)
	busy := append([]string{"status"}, nodetest.By(t, "{}", nodetest.Serve(t, root, containers...))...)
	idle := append([]string{"status"}, nodetest.By(t, "{}", nodetest.Serve(t, root))...)
	expectCheap(t, time.Second, 40, 60e6, func() (time.Duration, int) {
		t.Setenv(manyRegionsBelow, root)
		stdout, took, needed := costOf(t, busy...)
		if strings.Count(stdout, " 1.2 GiB on mlx5_") != 80 {
			t.Fatal(stdout)
		}
		return took, needed
	}, func() time.Duration {
		t.Setenv(manyRegionsBelow, "")
		_, took, _ := costOf(t, idle...)
		return took
	})
}
