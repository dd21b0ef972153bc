// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// forgetEvery is how often ended containers are removed from the record if the policy gives nothing to any container.
const forgetEvery = 10 * time.Minute

// findings are what a pass has found.
type findings struct {
	containers []*finding
	hidden     error    // why processes cannot be seen
	unasked    bool     // the kubelet answers, and was not asked about all containers
	starting   bool     // some process may still get its limits
	withdrawn  []string // containers that the policy gives no CAP_IPC_LOCK, by ID, if edits are unfinished
}

// finding is a container that the policy gives memlock or CAP_IPC_LOCK, or may give some.
type finding struct {
	*recorded
	policy.Container
	decision policy.Decision
	asks     bool // the decision needs the kubelet's answer
	reading  Reading
	verdict  Verdict
}

// wants returns what the policy gives: nothing if it refuses the container or leaves it alone.
func (f *finding) wants() spec.Grant {
	if f.decision.Grant == nil {
		return spec.Grant{}
	}
	return *f.decision.Grant
}

func (f *finding) wantsSomething() bool {
	return f.wants().Memlock != 0 || f.wants().IPCLock != spec.IPCLockNo
}

// noIPCLock reports whether the policy gives the container no CAP_IPC_LOCK, whatever the kubelet answers.
func (f *finding) noIPCLock() bool { return !f.asks && f.wants().IPCLock == spec.IPCLockNo }

// state is what is remembered of a container from one pass to the next.
type state struct {
	logged      string     // the last line about the container
	verdict     Verdict    // of the last pass
	raisedTo    spec.Limit // by a pass
	specPending bool       // its processes were raised, and its stored spec was not
	spec        storedSpec
	low         map[int]time.Time // since when its processes are seen to have less, by PID, where its spec gives enough
}

// limitedWithin is how long a runtime may take to set the limits of a process that it has put into the container's cgroup, of the first
// one or of an exec's. On a node that is busy it takes seconds.
const limitedWithin = 10 * time.Second

// staysLow reports whether some process had less than is wanted for longer than a start takes.
func (s *state) staysLow(r Reading, want spec.Limit, now time.Time) bool {
	low, stays := map[int]time.Time{}, false
	for _, p := range r.Processes {
		if p.Memlock.Soft >= want {
			continue
		}
		since, seen := s.low[p.PID]
		if !seen {
			since = now
		}
		low[p.PID] = since
		stays = stays || now.Sub(since) >= limitedWithin
	}
	s.low = low
	return stays
}

// look decides about every container, and compares those that the policy gives something. Of the unfinished edits, it finds those that the
// policy has withdrawn.
func (r *Repair) look(ctx context.Context, p *policy.Policy, all []*recorded, unfinished map[string]spec.Grant) *findings {
	found := &findings{hidden: r.Limits.Visible()}
	r.forgetOthers(all)
	node := r.Node
	node.HCAs = sync.OnceValues(node.HCAs)
	decide := func(f *finding) { f.decision, f.asks = r.decide(p, node, f.recorded, f.Container) }
	read := map[unique.Handle[facts]]policy.Container{}
	var f finding
	for _, e := range all {
		c, ok := read[e.facts]
		if !ok {
			c = e.container()
			read[e.facts] = c
		}
		c.Pod = e.pod
		f = finding{recorded: e, Container: c}
		if decide(&f); f.asks || f.wantsSomething() {
			found.containers = append(found.containers, new(f))
		}
		if len(unfinished) > 0 && f.noIPCLock() {
			found.withdrawn = append(found.withdrawn, e.id.String())
		}
	}
	slices.SortFunc(found.containers, inOrder)
	r.readProcesses(found, all)
	r.askKubelet(ctx, found, decide)
	r.readSpecs(ctx, found, decide)
	r.readAgain(ctx, found)
	now := time.Now()
	for _, f := range found.containers {
		found.starting = f.judge(r.state(f.id), now) || found.starting
	}
	return found
}

// inOrder sorts by name. Containers that may have a signal without the kubelet come first.
func inOrder(a, b *finding) int {
	rank := func(f *finding) int { return min(1, len(f.Devices)+len(f.Annotations)) }
	return cmp.Or(
		cmp.Compare(rank(b), rank(a)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
		strings.Compare(a.Name, b.Name), slices.Compare(a.id[:], b.id[:]),
	)
}

// readProcesses reads the processes of the containers, and removes containers without any. The record forgets ended containers.
func (r *Repair) readProcesses(found *findings, all []*recorded) {
	if len(found.containers) == 0 && time.Since(r.forgotten) < forgetEvery {
		return
	}
	r.forgotten = time.Now()
	if found.hidden != nil {
		r.forgetUnseen(found, all)
		return
	}
	var running map[string][]int
	if running, found.hidden = r.Limits.Containers(); found.hidden != nil {
		return
	}
	for _, f := range found.containers {
		f.reading = Read(r.Limits, pidsOf(running, f.recorded))
	}
	found.keep(func(f *finding) bool { return len(f.reading.Processes) > 0 })
	r.record.forget(slices.DeleteFunc(all, func(e *recorded) bool { return !r.record.overdue(e) || len(pidsOf(running, e)) > 0 }))
}

// forgetUnseen forgets the containers that were created since the plugin registered, where processes cannot be seen: only a stored spec
// that is read says when one is gone. They were created as the policy wants.
func (r *Repair) forgetUnseen(found *findings, all []*recorded) {
	kept := map[*recorded]bool{}
	for _, f := range found.containers {
		kept[f.recorded] = f.listed || r.specs() != nil
	}
	found.keep(func(f *finding) bool { return kept[f.recorded] })
	r.record.forget(slices.DeleteFunc(all, func(e *recorded) bool { return e.listed || kept[e] }))
}

// pidsOf finds a container's processes, without making its ID's text for each of thousands.
func pidsOf(running map[string][]int, e *recorded) []int {
	var id [2 * len(e.id)]byte
	hex.Encode(id[:], e.id[:])
	return running[string(id[:])]
}

func (f *findings) keep(which func(*finding) bool) {
	f.containers = slices.DeleteFunc(f.containers, func(c *finding) bool { return !which(c) })
}

// readAgain reads processes again that have less than the policy gives: those that are about to get their limits do not count.
func (r *Repair) readAgain(ctx context.Context, found *findings) {
	low := func(f *finding) bool { return f.reading.Low(f.wants().Memlock) > 0 }
	if !slices.ContainsFunc(found.containers, low) || !pause(ctx, SecondLookAfter) {
		return
	}
	found.keep(func(f *finding) bool {
		f.reading = f.reading.ReadAgain(r.Limits, f.id.String(), f.wants().Memlock)
		return len(f.reading.Processes) > 0
	})
}

// judge compares what the container has with what the policy gives it. Where the stored spec is not known, what the container was given
// stands for it: for processes that cannot be seen, and to tell whether a program has lowered its limit itself. It reports whether
// processes that have less may be about to get what the spec gives.
func (f *finding) judge(s *state, now time.Time) (starting bool) {
	want, given := f.wants().Memlock, f.facts.Value().given
	given.Soft = max(given.Soft, s.raisedTo)
	switch {
	case s.spec.known:
		f.reading = f.reading.WithSpec(s.spec.memlock, s.spec.setsMemlock)
	case given != spec.Rlimit{} && (len(f.reading.Processes) == 0 || f.reading.Low(want) > 0):
		f.reading = f.reading.WithSpec(given, true)
	}
	f.verdict = f.reading.Judge(want)
	if f.verdict == Below && f.reading.SpecSets && f.reading.Spec.Soft >= want && len(f.reading.Processes) > 0 {
		if starting = !s.staysLow(f.reading, want, now); starting {
			f.verdict = Sufficient
		}
	} else {
		s.low = nil
	}
	if f.verdict != s.verdict && !s.specPending {
		s.logged = "" // this is news
	}
	s.verdict = f.verdict
	return starting
}

// forgetOthers drops what is remembered of containers that are no longer recorded.
func (r *Repair) forgetOthers(all []*recorded) {
	states, answers := map[containerID]*state{}, map[containerID]answer{}
	for _, e := range all {
		if s, ok := r.states[e.id]; ok {
			states[e.id] = s
		}
		if a, ok := r.answers[e.id]; ok {
			answers[e.id] = a
		}
	}
	r.states, r.answers = states, answers
}

func (r *Repair) state(id containerID) *state {
	s := r.states[id]
	if s == nil {
		s = &state{}
		r.states[id] = s
	}
	return s
}

// pause waits, and reports whether it did: it does not if the context is done.
func pause(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-over.C:
		return true
	}
}
