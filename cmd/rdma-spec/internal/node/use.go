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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Use is how processes use RDMA. What is unknown is left out.
type Use struct {
	Summary       string   `json:"summary"`
	HCAs          []string `json:"hcas,omitempty"` // that they have opened
	*rdma.Objects          // nil: the kernel's book says nothing
	PinnedBytes   *uint64  `json:"pinnedBytes,omitempty"`
	most          uint64   // that one of them has pinned
}

const unknownUse = "unknown"

// Seen reports whether the kernel's book has objects of them.
func (u *Use) Seen() bool { return u.Objects != nil && u.Contexts > 0 }

// None reports whether they certainly use no RDMA. Memory that is pinned may be registered by means that the book does
// not have.
func (u *Use) None() bool {
	return u.Objects != nil && u.Contexts == 0 && u.PinnedBytes != nil && *u.PinnedBytes == 0
}

// summarize says it in a few words.
func (u *Use) summarize(certain bool) {
	pinned := u.PinnedBytes != nil && *u.PinnedBytes > 0
	switch {
	case u.Seen():
		u.Summary = "no memory"
		if u.RegisteredBytes > 0 {
			u.Summary = size(u.RegisteredBytes)
		}
		for _, state := range slices.Sorted(maps.Keys(u.QueuePairs)) {
			u.Summary += ", " + cli.Counted(u.QueuePairs[state], "QP ", "QPs ") + state
		}
		u.Summary += " on " + strings.Join(u.HCAs, ",")
		if !certain {
			u.Summary = "at least " + u.Summary
		}
	case pinned:
		u.Summary = size(*u.PinnedBytes) + " pinned"
	case u.None():
		u.Summary = "none"
	default:
		u.Summary = unknownUse
	}
}

// size writes bytes for people: 15.2 GiB.
func size(bytes uint64) string {
	units, n := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}, float64(bytes)
	for ; n >= 1<<10; n /= 1 << 10 {
		units = units[1:]
	}
	return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64) + " " + units[0]
}

// readBook returns the kernel's book, or notes why it is unknown.
func (s *surveyor) readBook() (book rdma.Book, known bool) {
	if s.book == nil {
		return book, false
	}
	book, err := s.book()
	if err != nil {
		s.note("who uses RDMA is unknown: " + err.Error())
	}
	return book, err == nil
}

// use reads how the processes of a container use RDMA, and notes what that means.
func (s *surveyor) use(r *Container, pids []int, ownNetwork bool) {
	if s.book == nil {
		return
	}
	book, known := s.readBook()
	var sum rdma.Objects
	certain := known && s.hidden == nil && len(pids) > 0
	if node, _ := s.listed(); certain && ownNetwork && node != nil && node.NetNSExclusive {
		certain = false
		s.note("what containers with a network of their own use is unknown: their HCAs are there (netns_mode is exclusive)")
	}
	for _, name := range slices.Sorted(maps.Keys(book.HCAs)) {
		opened := false
		for _, pid := range pids {
			p, opens := book.HCAs[name].Processes[pid]
			sum.Add(p.Objects)
			opened = opened || opens
		}
		if opened {
			r.Use.HCAs = append(r.Use.HCAs, name)
		}
	}
	for _, name := range r.HCAs {
		h, listed := book.HCAs[name]
		if known && (!listed || h.Unknown != "") {
			certain = false
			s.note(fmt.Sprintf("who uses %s is unknown: %s", name, cmp.Or(h.Unknown, "it is in another network namespace")))
		}
	}
	if certain || sum.Contexts > 0 {
		r.Use.Objects = &sum
	}
	for _, pid := range pids {
		if bytes, known := rdma.Pinned(s.root, pid); known {
			if r.Use.PinnedBytes == nil {
				r.Use.PinnedBytes = new(uint64)
			}
			*r.Use.PinnedBytes += bytes
			r.Use.most = max(r.Use.most, bytes)
		}
	}
	r.Use.summarize(certain)
	r.noteUse(book.At)
}

// noteUse notes what a container's use means.
func (r *Container) noteUse(at time.Time) {
	for _, state := range []string{"ERR", "SQE"} {
		if r.Use.Objects != nil && r.Use.QueuePairs[state] > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s failed (%s): its log has why",
				cli.Counted(r.Use.QueuePairs[state], "queue pair has", "queue pairs have"), state))
		}
	}
	switch {
	case r.Use.None() && len(r.HCAs) > 0:
		since := ""
		if !r.Started.IsZero() {
			since = fmt.Sprintf(" since it started %s ago", duration.HumanDuration(at.Sub(r.Started)))
		}
		r.Notes = append(r.Notes, fmt.Sprintf("holds %s and has registered no memory%s: does it run over TCP? With "+
			"NCCL_DEBUG=INFO its log names the transport, and rdma-spec verify in it finds what RDMA lacks",
			strings.Join(r.HCAs, ","), since))
	case r.Wanted != nil && r.Wanted.Memlock.Finite() && r.Use.most > 0:
		r.Notes = append(r.Notes, fmt.Sprintf("registered %s of %s that the policy gives a process", size(r.Use.most),
			size(uint64(r.Wanted.Memlock))))
	}
}

// outside completes a container that is no RDMA container, for a reason or none, where it uses RDMA all the same.
func (s *surveyor) outside(r *Container, l Listed, reason string) {
	pids := s.running[l.ID]
	if !s.opens(pids) {
		return
	}
	c := l.Container.Container
	s.hcas(r, c)
	s.limits(r, l.Spec)
	if memlock, known := r.reading.Lowest(); known {
		r.Memlock = &memlock
	}
	s.use(r, pids, !c.HostNetwork)
	const instead = "request an RDMA resource of a device plugin, or set the annotation rdma.noderesource.dev: \"true\" " +
		"where the policy lists the namespace"
	uses := "uses " + strings.Join(r.Use.HCAs, ",")
	r.State = StateOutside
	switch paths := s.hostPaths(l); {
	case c.AllDevices:
		r.Problems = []string{"privileged, " + uses + ": with the plugin it needs no privileges: " + instead}
	case len(paths) > 0:
		r.Problems = []string{fmt.Sprintf("%s is mounted from the node, %s: with the plugin it needs no hostPath volume: %s",
			strings.Join(paths, ", "), uses, instead)}
	default:
		r.Problems = []string{uses + ", and no policy gives it anything: " + cmp.Or(reason, instead)}
	}
}

// opens reports whether the book has one of these processes.
func (s *surveyor) opens(pids []int) bool {
	book, _ := s.readBook()
	for _, h := range book.HCAs {
		for _, pid := range pids {
			if _, found := h.Processes[pid]; found {
				return true
			}
		}
	}
	return false
}

// others returns the processes that use RDMA in none of the containers that are listed.
func (s *surveyor) others(listed []Listed) (found []Container) {
	book, _ := s.readBook()
	names, in := map[int]string{}, map[int]string{}
	for _, h := range book.HCAs {
		for pid, p := range h.Processes {
			names[pid] = p.Name
		}
	}
	for id, pids := range s.running {
		for _, pid := range pids {
			in[pid] = id
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(names)) {
		id := in[pid]
		if slices.ContainsFunc(listed, func(l Listed) bool { return l.ID == id }) {
			continue
		}
		r := Container{Report: Report{Container: cli.PlainText(names[pid]), ID: id, PID: pid, Signal: policy.SignalNone,
			HCAs: []string{}, State: StateOutside}}
		if memlock, err := s.processes.Memlock(pid); err == nil {
			r.Memlock = &memlock
		}
		s.use(&r, []int{pid}, false)
		where := "a process of the node, in no container"
		if id != "" {
			where = "in a container of another runtime"
		}
		r.Problems = []string{fmt.Sprintf("%s, uses %s: no policy is about it", where, strings.Join(r.Use.HCAs, ","))}
		found = append(found, r)
	}
	return found
}
