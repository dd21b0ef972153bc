// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Use describes the use of RDMA by processes. Fields whose values are unknown are omitted.
type Use struct {
	// Summary describes the use in a few words.
	Summary string `json:"summary"`
	// HCAs are the names of the HCAs that the processes have opened.
	HCAs          []string `json:"hcas,omitempty"`
	*rdma.Objects          // nil if the kernel's inventory contains nothing about the processes
	// PinnedBytes is the memory that the processes have pinned, for example by registering it.
	PinnedBytes *uint64 `json:"pinnedBytes,omitempty"`
}

// Seen reports whether the kernel's inventory contains objects of the processes.
func (u *Use) Seen() bool { return u.Objects != nil && u.Contexts > 0 }

// size formats a number of bytes, such as 15.2 GiB.
func size(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	n := float64(bytes)
	for ; n >= 1<<10; n /= 1 << 10 {
		units = units[1:]
	}
	return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64) + " " + units[0]
}

// readRDMA returns the kernel's inventory, and adds notes about its unknown parts.
func (s *surveyor) readRDMA() (inventory rdma.Inventory, known bool) {
	if s.inventory == nil {
		return inventory, false
	}
	inventory, err := s.inventory()
	if err != nil {
		s.note("cannot determine which processes use RDMA: " + err.Error())
	}
	for _, why := range inventory.Unknown() {
		s.note(why)
	}
	return inventory, err == nil
}

// use determines how the processes of a container use RDMA, and adds notes. A container that is not an RDMA container
// counts only if it uses RDMA.
func (s *surveyor) use(r *Container, pids []int, ownNetwork bool) {
	inventory, known := s.readRDMA()
	var sum rdma.Objects
	for _, name := range slices.Sorted(maps.Keys(inventory.HCAs)) {
		before := sum.Contexts
		for _, pid := range pids {
			sum.Add(inventory.HCAs[name].Processes[pid].Objects)
		}
		if sum.Contexts > before {
			r.Use.HCAs = append(r.Use.HCAs, name)
		}
	}
	if s.inventory == nil || !r.RDMA && sum.Contexts == 0 {
		return
	}
	certain := known && s.hidden == nil && len(pids) > 0
	if node, _ := s.listed(); certain && ownNetwork && node != nil && node.NetNSExclusive {
		certain = false
		s.note("cannot determine which HCAs are used by containers with their own network namespaces: the HCAs are in " +
			"those namespaces (netns_mode is exclusive)")
	}
	for _, name := range r.HCAs {
		h, listed := inventory.HCAs[name]
		certain = certain && listed && h.Unknown == ""
		if known && !listed {
			s.note("cannot determine which processes use " + name + ": the HCA is in another network namespace")
		}
	}
	if certain || sum.Contexts > 0 {
		r.Use.Objects = &sum
	}
	most := uint64(0)
	for _, pid := range pids {
		if bytes, known := rdma.Pinned(s.root, pid); known {
			most = max(most, bytes)
			if r.Use.PinnedBytes != nil {
				bytes += *r.Use.PinnedBytes
			}
			r.Use.PinnedBytes = &bytes
		}
	}
	r.sayUse(inventory.At, most)
}

// sayUse sets the summary of a container's use of RDMA at a time, and adds notes. most is the largest amount of memory
// that one of the container's processes has pinned. Pinned memory might be registered in ways that the inventory does
// not show.
func (r *Container) sayUse(at time.Time, most uint64) {
	switch u := &r.Use; {
	case u.Seen():
		u.Summary = "no memory"
		if u.RegisteredBytes > 0 {
			u.Summary = size(u.RegisteredBytes)
		}
		for _, state := range slices.Sorted(maps.Keys(u.QueuePairs)) {
			u.Summary += ", " + cli.Counted(u.QueuePairs[state], "QP ", "QPs ") + state
			if state == "ERR" || state == "SQE" {
				r.Notes = append(r.Notes, fmt.Sprintf("%s failed (%s): see the container's log",
					cli.Counted(u.QueuePairs[state], "queue pair has", "queue pairs have"), state))
			}
		}
		u.Summary += " on " + strings.Join(u.HCAs, ",")
	case most > 0:
		u.Summary = size(*u.PinnedBytes) + " pinned"
	case u.Objects != nil && u.PinnedBytes != nil:
		u.Summary = "none"
		if len(r.HCAs) > 0 {
			note := "the container has " + strings.Join(r.HCAs, ",") + ", but has not registered memory"
			if !r.Started.IsZero() {
				note += fmt.Sprintf(" since it started %s ago", duration.HumanDuration(at.Sub(r.Started)))
			}
			r.Notes = append(r.Notes, note+", so the program might be using TCP: to see the transport, set "+
				"NCCL_DEBUG=INFO and read the program's log, or run rdma-spec verify in the container")
		}
	}
	if r.Wanted != nil && r.Wanted.Memlock.Finite() && most > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("one process registered %s of the %s that the policy grants each process",
			size(most), size(uint64(r.Wanted.Memlock))))
	}
}

// outside completes a container that uses RDMA although it is not an RDMA container. reason is why the container is not
// an RDMA container, or "".
func (s *surveyor) outside(r *Container, l Listed, reason string) {
	r.RDMA = false
	s.hcas(r, l.Container.Container)
	s.use(r, s.running[l.ID], !l.HostNetwork)
	if !r.Use.Seen() {
		return
	}
	s.limits(r, l.Spec)
	const instead = "request an RDMA resource from a device plugin, or, if the policy lists the namespace, set the " +
		"annotation rdma.noderesource.dev: \"true\""
	uses := "uses " + strings.Join(r.Use.HCAs, ",")
	switch paths := s.hostPaths(l); {
	case l.AllDevices:
		uses = "the container is privileged, and " + uses + ": with the plugin, the container need not be privileged: " +
			instead
	case len(paths) > 0:
		uses = fmt.Sprintf("the container mounts %s from the node, and %s: with the plugin, the container needs no "+
			"hostPath volume: %s", strings.Join(paths, ", "), uses, instead)
	default:
		uses = "the container " + uses + ", but the policy grants it nothing: " + cmp.Or(reason, instead)
	}
	r.report(StateOutside, uses)
}

// outsiders returns the processes that use RDMA outside the listed containers.
func (s *surveyor) outsiders(listed []Listed) (found []Container) {
	inventory, _ := s.readRDMA()
	names := map[int]string{}
	in := map[int]string{}
	for _, h := range inventory.HCAs {
		for pid, p := range h.Processes {
			names[pid] = cli.PlainText(p.Name)
		}
	}
	for id, pids := range s.running {
		known := slices.ContainsFunc(listed, func(l Listed) bool { return l.ID == id })
		for _, pid := range pids {
			in[pid] = id
			if known {
				delete(names, pid)
			}
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(names)) {
		if _, runs := rdma.Pinned(s.root, pid); !runs {
			continue
		}
		r := Container{Report: Report{Container: names[pid], ID: in[pid], PID: pid, Signal: policy.SignalNone,
			HCAs: []string{}, State: StateOK}, reading: process.ReadMemlock(s.processes, []int{pid})}
		s.use(&r, []int{pid}, false)
		where := "a process on the node, outside containers,"
		if r.ID != "" {
			where = "a process in a container of another runtime"
		}
		r.report(StateOutside, fmt.Sprintf("%s uses %s; no policy applies to the process", where,
			strings.Join(r.Use.HCAs, ",")))
		found = append(found, r)
	}
	return found
}
