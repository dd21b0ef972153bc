// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rdma reads the kernel's inventory of RDMA objects through netlink: which process has opened which HCA, and
// how much memory it has registered there. The inventory lacks objects that programs create through DEVX, such as the
// queue pairs of UCX. Therefore, a program without a queue pair in the inventory can still have queue pairs. This
// package does not read containers.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// Inventory is the kernel's inventory of the HCAs in this network namespace, by HCA name.
type Inventory struct {
	At   time.Time      `json:"at"`
	HCAs map[string]HCA `json:"hcas"`
}

// Unknown lists the HCAs whose users are unknown, and the reasons.
func (b Inventory) Unknown() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(b.HCAs)) {
		if why := b.HCAs[name].Unknown; why != "" {
			all = append(all, "cannot determine which processes use "+name+": "+why)
		}
	}
	return all
}

// HCA is the part of the inventory about an HCA.
type HCA struct {
	Unknown   string          `json:"unknown,omitempty"` // why Processes might be incomplete
	Processes map[int]Process `json:"processes,omitempty"`
}

// Process is a process that uses an HCA.
type Process struct {
	Name string `json:"name"`
	Objects
}

// Objects are the objects of processes.
type Objects struct {
	// Contexts is how many times the processes have opened an HCA.
	Contexts int `json:"contexts"`
	// MemoryRegions is the number of memory regions that the processes have registered.
	MemoryRegions int `json:"memoryRegions"`
	// RegisteredBytes is the total size of the memory regions, including GPU memory.
	RegisteredBytes uint64 `json:"registeredBytes"`
	// QueuePairs is the number of queue pairs in each state. It is present only with --queue-pairs.
	QueuePairs map[string]int `json:"queuePairs,omitempty"`
}

// Add adds the counts of others.
func (o *Objects) Add(others Objects) {
	o.Contexts += others.Contexts
	o.MemoryRegions += others.MemoryRegions
	o.RegisteredBytes += others.RegisteredBytes
	if o.QueuePairs == nil && others.QueuePairs != nil {
		o.QueuePairs = map[string]int{}
	}
	for state, n := range others.QueuePairs {
		o.QueuePairs[state] += n
	}
}

// Dial opens the socket. Tests replay a kernel's responses.
var Dial = func() (*netlink.Conn, error) {
	// A large buffer lets the kernel write many objects per message. For each message, the kernel skips all earlier
	// objects.
	return netlink.Dial(unix.NETLINK_RDMA, &netlink.Config{MessageBufferSize: 64 << 10})
}

// Read reads the inventory. The processes are those under a root, which must have the PID namespace of this process.
// Queue pairs are read only if queuePairs is true, because they are queried one by one, on some HCAs from firmware.
func Read(ctx context.Context, root string, queuePairs bool) (Inventory, error) {
	conn, err := Dial()
	if err != nil {
		return Inventory{}, fmt.Errorf("the kernel's RDMA netlink interface is not available: %w", err)
	}
	defer func() { _ = conn.Close() }() // opened only for reading
	if deadline, bounded := ctx.Deadline(); bounded {
		_ = conn.SetReadDeadline(deadline) // the caller does not wait longer
	}
	inventory := Inventory{At: time.Now(), HCAs: map[string]HCA{}}
	indexes := map[string]uint32{}
	if err := dump(conn, getDevices, 0, func(o object) { indexes[o.name] = o.device }); err != nil {
		return Inventory{}, fmt.Errorf("cannot get the list of HCAs from the kernel: %w", err)
	}
	for name, index := range indexes {
		inventory.HCAs[name] = read(conn, index, root, queuePairs)
	}
	return inventory, nil
}

// opened is a context: an HCA that a process has opened, with the objects that the process created. The kernel reports
// the thread that created an object, unless the thread has exited. Therefore, any object of the context can identify
// the process.
type opened struct {
	Objects
	thread uint32
}

// addObject adds an object to a context. It skips contexts that belong to the kernel or are newer than the earlier
// lists.
func (c *opened) addObject(o object, counts Objects) *opened {
	if c != nil {
		c.Add(counts)
		c.thread = max(c.thread, o.thread)
	}
	return c
}

// states are the states of queue pairs, in the order of the kernel's enum ib_qp_state.
var states = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// read reads the inventory of an HCA.
func read(conn *netlink.Conn, index uint32, root string, queuePairs bool) HCA {
	contexts := map[int64]*opened{}
	domains := map[int64]*opened{}
	err := dump(conn, getContexts, index, func(o object) {
		if o.context != none {
			contexts[o.context] = (&opened{}).addObject(o, Objects{Contexts: 1})
		}
	})
	if errors.Is(err, unix.EINVAL) {
		return HCA{Unknown: "the kernel does not list the processes that have opened the HCA; the list requires Linux 5.14"}
	}
	err = errors.Join(err, dump(conn, getDomains, index, func(o object) {
		domains[o.domain] = contexts[o.context].addObject(o, Objects{})
	}), dump(conn, getRegions, index, func(o object) {
		domains[o.domain].addObject(o, Objects{MemoryRegions: 1, RegisteredBytes: o.length})
	}))
	if queuePairs {
		err = errors.Join(err, dump(conn, getQueuePairs, index, func(o object) {
			if int(o.state) < len(states) {
				domains[o.domain].addObject(o, Objects{QueuePairs: map[string]int{states[o.state]: 1}})
			}
		}))
	}
	if err != nil {
		return HCA{Unknown: "the kernel does not list the processes that use the HCA: " + err.Error()}
	}
	h := HCA{Processes: map[int]Process{}}
	for _, c := range contexts {
		if pid, err := strconv.Atoi(status(root, int(c.thread))["Tgid"]); err == nil {
			p := h.Processes[pid]
			p.Name = status(root, pid)["Name"]
			p.Add(c.Objects)
			h.Processes[pid] = p
		} else if c.thread == 0 { // otherwise, the process has exited
			h.Unknown = "the kernel does not list all processes that have opened the HCA, because the threads that opened " +
				"it have exited or belong to another PID namespace"
		}
	}
	return h
}

// status returns the lines of /proc/PID/status by name. If the process has exited, the result is empty.
func status(root string, pid int) map[string]string {
	text, _ := os.ReadFile(process.Process{PID: pid}.File(root, "status"))
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.TrimSpace(value)
	}
	return lines
}

// Pinned returns the amount of memory that a process has pinned, in bytes. It includes registered memory, except GPU
// memory. It returns false if the process has exited.
func Pinned(root string, pid int) (bytes uint64, known bool) {
	kilobytes, err := strconv.ParseUint(strings.TrimSuffix(status(root, pid)["VmPin"], " kB"), 10, 54)
	return kilobytes << 10, err == nil
}
