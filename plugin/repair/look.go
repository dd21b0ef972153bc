// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// findings are what a pass has found.
type findings struct {
	containers []*finding
	hidden     error // why processes cannot be seen
	unasked    bool  // the kubelet answers, and was not asked about all containers
	starting   bool  // some process may still get its limits
}

// finding is a container that the policy gives memlock or CAP_IPC_LOCK, or may give some.
type finding struct {
	*recorded
	*state
	decision policy.Decision
	asks     bool // the decision needs the kubelet's answer, which is not known
	reading  Reading
	verdict  Verdict
}

// state is what a pass remembers of a finding for the next one.
type state struct {
	// resources gives the kubelet's answer, nil before. It never changes: resources are allotted when the pod is admitted.
	resources   func() (names []string, known bool, err error)
	logged      string     // the last line about the container
	previous    Verdict    // of the last pass
	raisedTo    spec.Limit // by a pass
	specPending bool       // its processes were raised, and its stored spec was not
	spec        storedSpec
	low         map[int]time.Time // since when its processes are seen to have less, by PID
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

// look decides about every container, and compares those that the policy gives something.
func (r *Loop) look(ctx context.Context, p *policy.Policy, all []*recorded) *findings {
	found := &findings{hidden: r.Limits.Visible()}
	facts := r.Facts
	facts.HCAs = sync.OnceValues(facts.HCAs)
	decide := func(f *finding) { r.decide(p, facts, f) }
	maps.DeleteFunc(r.states, func(id string, _ *state) bool { return !r.record.has(id) })
	for _, e := range all {
		f := &finding{recorded: e, state: cmp.Or(r.states[e.ID], &state{})}
		if decide(f); f.asks || f.wantsSomething() {
			r.states[e.ID] = f.state
			found.containers = append(found.containers, f)
		}
	}
	slices.SortFunc(found.containers, inOrder)
	r.readProcesses(found, all)
	r.askKubelet(ctx, found, decide)
	r.readSpecs(ctx, found, decide)
	now := time.Now()
	for _, f := range found.containers {
		found.starting = f.judge(now) || found.starting
	}
	return found
}

// inOrder sorts by name. Containers that may have a signal without the kubelet come first.
func inOrder(a, b *finding) int {
	rank := func(f *finding) int { return min(1, len(f.Devices)+len(f.Annotations)) }
	return cmp.Or(
		cmp.Compare(rank(b), rank(a)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod),
		strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID),
	)
}

// readProcesses reads the processes of the containers, and removes containers without any. The record forgets ended
// containers.
func (r *Loop) readProcesses(found *findings, all []*recorded) {
	if len(found.containers) == 0 && time.Since(r.forgotten) < forgetAfter {
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
		f.reading = Read(r.Limits, running[f.ID])
	}
	found.keep(func(f *finding) bool { return len(f.reading.Processes) > 0 })
	r.record.forget(all, func(e *recorded) bool { return len(running[e.ID]) == 0 && time.Since(e.since) > forgetAfter })
}

// forgetUnseen forgets the containers that were created since the plugin registered, where processes cannot be seen:
// only a stored spec that is read says when one is gone. They were created as the policy wants.
func (r *Loop) forgetUnseen(found *findings, all []*recorded) {
	kept := map[*recorded]bool{}
	for _, f := range found.containers {
		kept[f.recorded] = f.listed || r.specs() != nil
	}
	found.keep(func(f *finding) bool { return kept[f.recorded] })
	r.record.forget(all, func(e *recorded) bool { return !e.listed && !kept[e] })
}

func (f *findings) keep(which func(*finding) bool) {
	f.containers = slices.DeleteFunc(f.containers, func(c *finding) bool { return !which(c) })
}

// judge compares what the container has with what the policy gives it. Where the stored spec is not known, what the
// container was given stands for it, unless a pass has raised it. It reports whether processes that have less may be
// about to get what the spec gives.
func (f *finding) judge(now time.Time) (starting bool) {
	want, given := f.wants().Memlock, f.Memlock
	given.Soft = max(given.Soft, f.raisedTo)
	switch {
	case f.spec.known:
		f.reading = f.reading.WithSpec(f.spec.memlock, f.spec.setsMemlock)
	case f.raisedTo >= want && f.Memlock.Soft < want: // the spec may say less
	case given != spec.Rlimit{} && (len(f.reading.Processes) == 0 || f.reading.Low(want) > 0):
		f.reading = f.reading.WithSpec(given, true)
	}
	counts := f.reading
	if !f.reading.SpecRead || f.reading.SpecSets && f.reading.Spec.Soft >= want {
		counts, starting = f.started(want, now)
	}
	verdict := counts.Judge(want)
	if verdict != f.previous && !f.specPending {
		f.logged = "" // this is news
	}
	f.verdict, f.previous = verdict, verdict
	return starting
}

// started returns the reading with what is wanted in place of the limits of those processes that have not been low for
// long, and whether there are any.
func (f *finding) started(want spec.Limit, now time.Time) (counts Reading, starting bool) {
	counts, low := f.reading, map[int]time.Time{}
	counts.Processes = slices.Clone(counts.Processes)
	for i, p := range counts.Processes {
		if p.Memlock.Soft >= want {
			continue
		}
		since, seen := f.low[p.PID]
		if !seen {
			since = now
		}
		low[p.PID] = since
		if now.Sub(since) < startsWithin {
			counts.Processes[i].Memlock, starting = spec.Rlimit{Soft: want, Hard: want}, true
		}
	}
	f.low = low
	return counts, starting
}
