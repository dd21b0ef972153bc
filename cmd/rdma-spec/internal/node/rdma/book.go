// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rdma reads the kernel's book of RDMA objects over netlink: which process has opened which HCA, and how much
// memory it has registered there. The book lacks what programs make by DEVX, as UCX makes its queue pairs, so that no
// queue pair is evidence of nothing. The package knows no containers.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// Book is what the kernel knows of the HCAs of this network namespace, by their names.
type Book struct {
	At   time.Time      `json:"at"`
	HCAs map[string]HCA `json:"hcas"`
}

// HCA is what the book has about an HCA.
type HCA struct {
	Unknown   string          `json:"unknown,omitempty"` // why the processes are not all that use it
	Processes map[int]Process `json:"processes,omitempty"`
}

// Process is a process that uses an HCA.
type Process struct {
	Name string `json:"name"`
	Objects
}

// Objects are the objects of processes.
type Objects struct {
	Contexts        int            `json:"contexts"`
	MemoryRegions   int            `json:"memoryRegions"`
	RegisteredBytes uint64         `json:"registeredBytes"`
	QueuePairs      map[string]int `json:"queuePairs,omitempty"` // by their states, if they were asked for
}

// Add adds others.
func (o *Objects) Add(others Objects) {
	o.Contexts += others.Contexts
	o.MemoryRegions += others.MemoryRegions
	o.RegisteredBytes += others.RegisteredBytes
	for state, n := range others.QueuePairs {
		o.addQueuePairs(state, n)
	}
}

func (o *Objects) addQueuePairs(state string, n int) {
	if o.QueuePairs == nil {
		o.QueuePairs = map[string]int{}
	}
	o.QueuePairs[state] += n
}

// states are those of queue pairs, as enum ib_qp_state of the kernel numbers them.
var states = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// Read reads the book. The processes are those below a root, which must have the PID namespace of this process. Queue
// pairs are queried one by one, on some HCAs from firmware, and so only if they are asked for.
func Read(ctx context.Context, root string, queuePairs bool) (Book, error) {
	k, err := dial(ctx)
	if err != nil {
		return Book{}, err
	}
	defer k.close()
	book, indexes := Book{At: time.Now(), HCAs: map[string]HCA{}}, map[string]uint32{}
	if err := k.dump(getDevices, nil, func(o object) { indexes[o.name] = o.device }); err != nil {
		return Book{}, fmt.Errorf("the kernel does not list HCAs: %w", err)
	}
	for name, index := range indexes {
		book.HCAs[name] = k.read(root, index, queuePairs)
	}
	return book, nil
}

// opened is a context: an HCA as a process has opened it, with the objects that it made there. The kernel names the
// thread that made an object, and none that has ended, so any object of the context may be the one that names it.
type opened struct {
	Objects
	thread uint32
}

// read reads what the book has about an HCA.
func (k *kernel) read(root string, index uint32, queuePairs bool) (h HCA) {
	contexts, domains := map[int64]*opened{}, map[int64]*opened{}
	named := func(c *opened, o object) *opened { // nil is the kernel's own, or newer than the lists before
		if c != nil && c.thread == 0 {
			c.thread = o.thread
		}
		return c
	}
	err := k.dump(getContexts, &index, func(o object) {
		if o.context != none {
			contexts[o.context] = &opened{Objects{Contexts: 1}, o.thread}
		}
	})
	if errors.Is(err, unix.EINVAL) {
		return HCA{Unknown: "the kernel does not list who has opened it, which takes Linux 5.14"}
	}
	if err == nil {
		err = k.dump(getDomains, &index, func(o object) { domains[o.domain] = named(contexts[o.context], o) })
	}
	if err == nil {
		err = k.dump(getRegions, &index, func(o object) {
			if c := named(domains[o.domain], o); c != nil {
				c.Add(Objects{MemoryRegions: 1, RegisteredBytes: o.length})
			}
		})
	}
	if err == nil && queuePairs {
		err = k.dump(getQueuePairs, &index, func(o object) {
			if c := named(domains[o.domain], o); c != nil && int(o.state) < len(states) {
				c.addQueuePairs(states[o.state], 1)
			}
		})
	}
	if err != nil {
		return HCA{Unknown: "the kernel does not list who uses it: " + err.Error()}
	}
	h.Processes = map[int]Process{}
	nameless := false
	for _, c := range contexts {
		if c.thread == 0 {
			nameless = true
			continue
		}
		lines := status(root, int(c.thread))
		if pid, err := strconv.Atoi(lines["Tgid"]); err == nil { // else it has ended meanwhile
			p := h.Processes[pid]
			p.Name = status(root, pid)["Name"]
			p.Add(c.Objects)
			h.Processes[pid] = p
		}
	}
	if nameless {
		h.Unknown = "the kernel does not name all processes that have opened it: the threads that did so have ended, or are " +
			"of another PID namespace"
	}
	return h
}

// status returns the lines of /proc/PID/status by their names; none where the process has ended.
func status(root string, pid int) map[string]string {
	text, _ := os.ReadFile(process.Process{PID: pid}.File(root, "status"))
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.TrimSpace(value)
	}
	return lines
}

// Pinned returns how many bytes of memory a process has pinned: of what it has registered, those that are no GPU's. It
// is false for one that has ended.
func Pinned(root string, pid int) (bytes uint64, known bool) {
	kilobytes, err := strconv.ParseUint(strings.TrimSuffix(status(root, pid)["VmPin"], " kB"), 10, 54)
	return kilobytes << 10, err == nil
}
