// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limitstest provides a fake kernel for tests that read and raise the limits of running processes. The kernel
// is a table of processes in memory. A test can change the table between two calls from package limits.
package limitstest

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// ID returns a container ID in a runtime's format for a name of at most 32 bytes. IDs sort in the same order as their
// names.
func ID(name string) string {
	id := hex.EncodeToString([]byte(name))
	return id + strings.Repeat("0", 64-len(id))
}

// Name returns the name from which ID made a container ID.
func Name(id string) string {
	name, err := hex.DecodeString(id)
	if err != nil {
		return id
	}
	return strings.TrimRight(string(name), "\x00")
}

// Process is a process of a Kernel.
type Process struct {
	Container string // the ID of its container; "" outside a container
	Limit     spec.Rlimit
	Began     spec.Rlimit // the initial Limit
	Leader    int         // the process ID, if the key in the table is a thread ID
	Command   string      // the program of the process
}

// NewProcess returns a process with the same soft and hard limit.
func NewProcess(container string, limit spec.Limit) *Process {
	l := spec.Rlimit{Soft: limit, Hard: limit}
	return &Process{Container: container, Limit: l, Began: l}
}

// Kernel implements limits.Kernel.
type Kernel struct {
	Table map[int]*Process // by process ID
	// The kernel calls Happens, if set, before each call, and Lists, if set, before it lists all processes. Happens and
	// Lists may change the fields, but must not call methods.
	Happens func(asked int) // asked is the number of earlier calls
	Lists   func()
	Refuse  error // the error that Set returns; if nil, Set sets the limit
	Hidden  bool  // containers' processes are not visible

	mu    sync.Mutex
	asked int
	sets  int
	made  int // number of processes that the kernel has created
}

// NewKernel returns a kernel with processes in containers. The map contains the soft limit of each process, by
// container ID.
func NewKernel(containers map[string][]spec.Limit) *Kernel {
	k := &Kernel{Table: map[int]*Process{}}
	for _, id := range slices.Sorted(maps.Keys(containers)) {
		k.add(id, containers[id])
	}
	return k
}

// Run replaces a container's processes with new processes that have these limits. Run returns the ID of the first new
// process.
func (k *Kernel) Run(container string, soft ...spec.Limit) (first int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.Table, func(_ int, p *Process) bool { return p.Container == container })
	first = firstPID + k.made
	k.add(container, soft)
	return first
}

// firstPID is the ID of the first process that the kernel creates.
const firstPID = 1000

func (k *Kernel) add(container string, soft []spec.Limit) {
	for _, limit := range soft {
		k.Table[firstPID+k.made] = NewProcess(container, limit)
		k.made++
	}
}

// Soft returns the soft limits of a container's processes, in the order of their IDs.
func (k *Kernel) Soft(container string) []spec.Limit {
	k.mu.Lock()
	defer k.mu.Unlock()
	var soft []spec.Limit
	for _, pid := range slices.Sorted(maps.Keys(k.Table)) {
		if p := k.Table[pid]; p.Container == container {
			soft = append(soft, p.Limit.Soft)
		}
	}
	return soft
}

// Change changes the kernel's fields while other goroutines may call the kernel.
func (k *Kernel) Change(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// Asked returns the number of calls so far.
func (k *Kernel) Asked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// Sets returns the number of calls of Set so far, including refused calls.
func (k *Kernel) Sets() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sets
}

func (k *Kernel) ask(pid int) *Process {
	if k.Happens != nil {
		k.Happens(k.asked)
	}
	k.asked++
	if k.Hidden {
		return nil
	}
	return k.Table[pid]
}

// PIDs implements limits.Kernel.
func (k *Kernel) PIDs() ([]int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ask(0)
	if k.Lists != nil {
		k.Lists()
	}
	if k.Hidden {
		return []int{self}, nil
	}
	return slices.Sorted(maps.Keys(k.Table)), nil
}

// self is the ID of the calling process.
const self = 1

// Read implements limits.Kernel for cgroup, limits, and the required lines of other files.
func (k *Kernel) Read(pid int, name string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.ask(pid)
	switch {
	case name == "comm" && pid == 2 && !k.Hidden: // kthreadd exists in the node's PID namespace
		return []byte("kthreadd\n"), nil
	case name == "cgroup" && pid == self && k.Hidden: // the cgroup of a container's first process
		return []byte("0::/\n"), nil
	case p == nil:
		return nil, errors.New("no such process")
	}
	switch name {
	case "cgroup":
		return []byte("0::/kubepods/" + p.Container + "\n"), nil
	case "limits":
		return fmt.Appendf(nil, "Max locked memory  %s %s bytes\n", words(p.Limit.Soft), words(p.Limit.Hard)), nil
	case "status":
		return fmt.Appendf(nil, "Name:\ta\nTgid:\t%d\nCapEff:\t00000000a80425fb\n", cmp.Or(p.Leader, pid)), nil
	case "cmdline":
		return []byte(p.Command + "\x00"), nil
	case "uid_map":
		return []byte("0 0 4294967295\n"), nil
	}
	return nil, fmt.Errorf("no file %s", name)
}

func words(l spec.Limit) string {
	if l == spec.Unlimited {
		return "unlimited"
	}
	return fmt.Sprint(uint64(l))
}

// Self implements limits.Kernel.
func (*Kernel) Self() int { return self }

// Changeable implements limits.Kernel.
func (*Kernel) Changeable() error { return nil }

// Open implements limits.Kernel.
func (k *Kernel) Open(pid int) (limits.Holder, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.ask(pid)
	if p == nil {
		return nil, limits.ErrGone
	}
	if p.Leader != 0 && p.Leader != pid {
		return nil, limits.ErrThread
	}
	return holder{k, pid, p}, nil
}

// Set implements limits.Kernel.
func (k *Kernel) Set(pid int, limit spec.Rlimit) (spec.Rlimit, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets++
	p := k.ask(pid)
	if p == nil {
		return spec.Rlimit{}, limits.ErrGone
	}
	if k.Refuse != nil {
		return spec.Rlimit{}, k.Refuse
	}
	former := p.Limit
	p.Limit = limit
	return former, nil
}

// Pause implements limits.Kernel. Pause returns immediately.
func (*Kernel) Pause(context.Context, time.Duration) {}

// holder refers to a process in the table.
type holder struct {
	k   *Kernel
	pid int
	p   *Process
}

func (h holder) Holds() bool {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	return h.k.ask(h.pid) == h.p
}

func (holder) Close() {}
