// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package rdma_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// withProcesses is a root whose threads belong to processes.
func withProcesses(t *testing.T, of map[int]int) string {
	t.Helper()
	root := scratch.Dir(t)
	for thread, pid := range of {
		text := "Name:\ttrainer\nTgid:\t" + strconv.Itoa(pid) + "\nVmPin:\t   16384 kB\n"
		scratch.File(t, filepath.Join(root, "proc", strconv.Itoa(thread), "status"), text, 0o644)
	}
	return root
}

func TestRead(t *testing.T) {
	root := withProcesses(t, map[int]int{10: 10, 11: 10, 20: 20})
	const mega = 1 << 20
	rdmatest.Serve(t,
		rdmatest.HCA{Name: "mlx5_0", Contexts: []rdmatest.Context{
			{Thread: 10, RegionThread: 10, Regions: []uint64{4 * mega, 1}, QueuePairs: []uint8{3, 3, 6, 0}},
			{Thread: 10},
			{Thread: 20, RegionThread: 20, Regions: []uint64{8 * mega}, QueuePairs: []uint8{5, 200}},
			{Thread: 99, Regions: []uint64{mega}}, // a process that has ended meanwhile
		}},
		rdmatest.HCA{Name: "threads", Contexts: []rdmatest.Context{
			{Thread: 0, DomainThread: 11, Regions: []uint64{mega}},
			{Thread: 0, RegionThread: 11, Regions: []uint64{mega}},
			{Thread: 0, Regions: []uint64{mega}},
		}},
		rdmatest.HCA{Name: "idle"},
		rdmatest.HCA{Name: "old", Old: true, Contexts: []rdmatest.Context{{Thread: 10}}},
	)
	process := func(o rdma.Objects) rdma.Process { return rdma.Process{Name: "trainer", Objects: o} }
	want := map[string]rdma.HCA{
		"mlx5_0": {Processes: map[int]rdma.Process{
			10: process(rdma.Objects{Contexts: 2, MemoryRegions: 2, RegisteredBytes: 4*mega + 1,
				QueuePairs: map[string]int{"RTS": 2, "ERR": 1, "RESET": 1}}),
			20: process(rdma.Objects{Contexts: 1, MemoryRegions: 1, RegisteredBytes: 8 * mega,
				QueuePairs: map[string]int{"SQE": 1}}),
		}},
		"threads": {
			Unknown: "the kernel does not list all processes that have opened the HCA, because the threads that opened it have exited or " +
				"belong to another PID namespace",
			Processes: map[int]rdma.Process{
				10: process(rdma.Objects{Contexts: 2, MemoryRegions: 2, RegisteredBytes: 2 * mega}),
			},
		},
		"idle": {},
		"old":  {Unknown: "the kernel does not list the processes that have opened the HCA; the list requires Linux 5.14"},
	}
	for _, queuePairs := range []bool{true, false} {
		got, err := rdma.Read(t.Context(), root, queuePairs)
		if err != nil {
			t.Fatal(err)
		}
		if !queuePairs {
			for pid, p := range want["mlx5_0"].Processes {
				p.QueuePairs = nil
				want["mlx5_0"].Processes[pid] = p
			}
		}
		if diff := cmp.Diff(want, got.HCAs, cmpopts.EquateEmpty()); diff != "" || got.At.IsZero() {
			t.Errorf("queue pairs %t (-want +got):\n%s", queuePairs, diff)
		}
	}
	if bytes, known := rdma.Pinned(root, 10); bytes != 16*mega || !known {
		t.Errorf("pinned: %d, %t", bytes, known)
	}
	if _, known := rdma.Pinned(root, 30); known {
		t.Error("what a process that has ended has pinned is known")
	}
}

func TestRead_unavailable(t *testing.T) {
	before := rdma.Dial
	t.Cleanup(func() { rdma.Dial = before })
	for words, dial := range map[string]func() (*netlink.Conn, error){
		"cannot get the list of HCAs from the kernel": func() (*netlink.Conn, error) {
			return nltest.Dial(func([]netlink.Message) ([]netlink.Message, error) { return nil, syscall.EINVAL }), nil
		},
		"RDMA netlink interface is not available: protocol not supported": func() (*netlink.Conn, error) { return nil, syscall.EPROTONOSUPPORT },
	} {
		rdma.Dial = dial
		if got, err := rdma.Read(t.Context(), scratch.Dir(t), false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}
