// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// passesMost bounds how often all processes are gone through. Four passes are enough where nothing forks.
	passesMost = 30
	// cleanPasses is how many passes in a row must find nothing low, betweenPasses apart. A child gets the limits of its
	// parent early in the fork, and is listed at its end: a fork that began before its parent was raised leaves a child
	// that is low, and that appears later. In between, the kernel copies the parent's page tables, 15 ms for each GiB in
	// small pages.
	cleanPasses   = 3
	betweenPasses = 300 * time.Millisecond
)

// Outcome is what became of a container's processes.
type Outcome struct {
	Raised int   // how many were raised
	Err    error // why some may still be low
}

// Raise raises RLIMIT_MEMLOCK of every process of containers, given by ID, to at least what is wanted; no limit is
// lowered.
//
// The processes are gone through again until none has been low for some time: one that forks just before it is raised
// leaves a child that is low. A child is missed only where the fork takes longer than that. The outcomes have every
// container that was given; one without processes is done.
func (p *Processes) Raise(ctx context.Context, wanted map[string]spec.Limit) map[string]Outcome {
	outcomes := map[string]Outcome{}
	open := map[string]int{} // clean passes to go, of the containers of which some process may be low
	for id := range wanted {
		outcomes[id] = Outcome{}
		open[id] = cleanPasses
	}
	err := cmp.Or(p.kernel.Changeable(), ctx.Err())
	for pass := 0; err == nil && len(open) > 0; pass++ {
		if pass == passesMost {
			err = fmt.Errorf("new processes with a low limit appeared in each of %d passes: try again when the "+
				"container starts fewer processes", passesMost)
			break
		}
		var found map[string][]int
		if found, err = p.Containers(); err != nil {
			break
		}
		for id := range open {
			raised, failed := p.raise(id, found[id], wanted[id])
			outcomes[id] = Outcome{outcomes[id].Raised + raised, failed}
			open[id]--
			if raised > 0 {
				open[id] = cleanPasses
			}
			if failed != nil || open[id] == 0 {
				delete(open, id)
			}
		}
		if len(open) > 0 {
			p.kernel.Pause(ctx, betweenPasses)
		}
		err = ctx.Err()
	}
	for id := range open {
		outcomes[id] = Outcome{outcomes[id].Raised, err}
	}
	return outcomes
}

// raise raises those processes of a container that are low. The error is that of the last one that could not be raised.
func (p *Processes) raise(id string, pids []int, want spec.Limit) (raised int, failed error) {
	for _, pid := range pids {
		was, err := p.RaiseOne(pid, want, inContainer(id))
		switch {
		case errors.Is(err, ErrGone):
		case err != nil:
			failed = err
		case was:
			raised++
		}
	}
	return raised, failed
}

// Specs edits the specs that a runtime keeps of containers that run, from which later execs take their limits.
type Specs interface {
	// ApplyRunning makes a container's stored spec hold what the grant says, and reports whether that changed it.
	ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error)
}

// SpecOutcome is what became of a container and its stored spec.
type SpecOutcome struct {
	Outcome
	SpecChanged bool  // the stored spec was raised
	SpecErr     error // why later execs may be low
}

// RaiseWithSpecs raises containers that run, given by ID: their processes, then the stored specs, and then the
// processes again that were made from the old spec meanwhile. Without specs, later execs keep the old limit. A stored
// spec is left alone where the processes could not be raised.
func (p *Processes) RaiseWithSpecs(ctx context.Context, wanted map[string]spec.Limit,
	specs Specs) map[string]SpecOutcome {
	repaired := make(map[string]SpecOutcome, len(wanted))
	again := map[string]spec.Limit{}
	for id, outcome := range p.Raise(ctx, wanted) {
		r := SpecOutcome{Outcome: outcome}
		if specs != nil && r.Err == nil {
			r.SpecChanged, r.SpecErr = specs.ApplyRunning(ctx, id, spec.Grant{Memlock: wanted[id]})
		}
		if r.SpecChanged {
			again[id] = wanted[id]
		}
		repaired[id] = r
	}
	for id, outcome := range p.Raise(ctx, again) {
		r := repaired[id]
		r.Raised += outcome.Raised
		r.Err = outcome.Err
		repaired[id] = r
	}
	return repaired
}
