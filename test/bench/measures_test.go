// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/runc"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

var restFor = flag.Duration("rest", time.Minute, "how long a program at rest is measured")

// cpuOf returns the CPU time that a process has used; PID 0 means this process.
func cpuOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	clock := int32(unix.CLOCK_PROCESS_CPUTIME_ID)
	if pid > 0 {
		clock = int32(^pid<<3 | 2) // CPUCLOCK_SCHED of a process: see clock_getcpuclockid(3)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// rest measures the CPU time of nri-rdma with its defaults, and of a no-op plugin, while no container is created.
func rest(t testing.TB, what string, node hcatest.Files, target float64) result {
	us, them := start(t, "nri-rdma --root "+node.Root(t)), start(t, "reference --post")
	pids := []int{us.processes[0].Process.Pid, them.processes[0].Process.Pid}
	before := []time.Duration{cpuOf(t, pids[0]), cpuOf(t, pids[1])}
	began := time.Now()
	<-time.After(*restFor)
	seconds := time.Since(began).Seconds()
	ours, theirs := micros(cpuOf(t, pids[0])-before[0])/seconds, micros(cpuOf(t, pids[1])-before[1])/seconds
	return result{what: "at rest, " + what, against: "a no-op plugin", unit: "µs CPU in 1 s", ours: ours,
		theirs: theirs, compared: spreadOf([]float64{ours}), difference: true, target: target}
}

// pass measures the CPU time of reading a node's HCAs once, with a configuration.
func pass(t testing.TB, what, config string, node hcatest.Files, target float64) result {
	const rounds = 21
	p, err := policy.FromText([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	hcas := inventory.New(node.Root(t), logrus.New())
	hcas.Want(p.Wants())
	go hcas.Run(t.Context())
	var took []float64
	for range rounds + 1 {
		before := cpuOf(t, 0)
		if _, _, err := hcas.ReadAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		took = append(took, micros(cpuOf(t, 0)-before)/1e3)
	}
	measured := spreadOf(took[1:]) // the first reading also finds out how the HCAs are related
	return result{what: "a reading, " + what, against: "nothing", unit: "ms CPU", ours: measured.median,
		compared: measured, difference: true, target: target}
}

// atRest measures nri-rdma on a node with many HCAs, and on one with eight.
func atRest(t testing.TB) []result {
	const many, gives = "2,064 HCAs, 500 netdevs", "inject: {namespaces: [ml], netdevs: [ens*]}"
	largest := hcatest.VirtualFunctions(16, 128, 500)
	return []result{
		pass(t, many, "{}", largest, 30), pass(t, many+", injected by netdev", gives, largest, 30),
		rest(t, many, largest, 3000), rest(t, "8 HCAs", hcatest.VirtualFunctions(8, 0, 0), 1000),
	}
}

// TestAtRest prints what nri-rdma costs while no container is created.
func TestAtRest(t *testing.T) {
	if !*speed {
		t.Skip("takes minutes: make bench")
	}
	printTable(t, t.Output(), atRest(t))
}

const (
	// blockedFor is how long reading a port's state blocks.
	blockedFor = 5 * time.Second
	// readWithin is how long nri-rdma takes at most until it reads the state of each port again.
	readWithin = 20 * time.Second
)

// blocked compares creations of containers while reading a port's state blocks with the same number of creations while
// it does not.
func (s *setting) blocked(t testing.TB) result {
	const rounds, count = 5, 1000
	ours := s.nriRDMA(t, withoutIPCLock)
	createAll := func() (took []time.Duration) {
		for _, o := range []order{s.plain, s.holding, s.asking} {
			took = append(took, side{ours, o}.batch(t, count/3)...)
		}
		slices.Sort(took)
		return took
	}
	createAll()
	var measured []pair
	for range rounds {
		free := createAll()
		unblock := hcatest.Block(t, s.root, "sys/class/infiniband/mlx5_0/ports/1/state")
		await.Success(t, readWithin, "reading the port's state", func() error {
			if locks := scratch.Read(t, "/proc/locks"); !strings.Contains(locks, "LEASE  BREAKING") {
				return errors.New(locks)
			}
			return nil
		})
		answers := time.After(blockedFor)
		measured = append(measured, pair{ours: createAll(), theirs: free})
		select {
		case <-answers:
			t.Errorf("%d containers took longer than %s", count, blockedFor)
		default:
			<-answers
		}
		unblock()
	}
	r := result{what: "a port's state blocks for 5 s", against: "it answers"}
	return r.quantile(measured, "p99", .99, 2)
}

// starts compares how long runc takes to run a container that ends at once, with the hook from CDI files and without
// it.
func starts(t *testing.T) result {
	const pairs = 50
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	r := runc.New(t)
	hook := r.Hook(filepath.Join(dir, "rdma-hook"))
	run := func(name string, hooks ...specs.Hook) float64 {
		began := time.Now()
		if _, err := r.Run(name, []string{"true"}, hooks...); err != nil {
			t.Fatal(err)
		}
		return float64(time.Since(began).Microseconds()) / 1e3
	}
	var ours, theirs, longer []float64
	for i := range pairs {
		with, without := 0.0, 0.0
		if i%2 == 0 {
			with, without = run(fmt.Sprint("with-", i), hook), run(fmt.Sprint("without-", i))
		} else {
			without, with = run(fmt.Sprint("without-", i)), run(fmt.Sprint("with-", i), hook)
		}
		ours, theirs, longer = append(ours, with), append(theirs, without), append(longer, with-without)
	}
	return result{
		what: "a container starts with the hook", against: "the same without", unit: "p50 ms",
		ours: spreadOf(ours).median, theirs: spreadOf(theirs).median, compared: spreadOf(longer),
		difference: true, target: 10,
	}
}
