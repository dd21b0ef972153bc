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
	// passesMost bounds the number of passes over all processes. Four passes are enough if no process forks.
	passesMost = 30
	// cleanPasses is how many passes in a row must find no low process, with betweenPasses between them. A child copies
	// its parent's limits early in a fork, and is listed at the end: if the fork began before the parent was raised, a low
	// child appears later. In between, the kernel copies the parent's page tables, which takes 15 ms for each GiB in small
	// pages.
	cleanPasses   = 3
	betweenPasses = 300 * time.Millisecond
)

// Outcome is the result for a container's processes.
type Outcome struct {
	Raised int   // number of raised processes
	Err    error // why some may still be low
}

// Raise raises the RLIMIT_MEMLOCK of every process of containers, given by ID, to at least the wanted limits. It lowers
// no limit.
//
// It repeats its passes until no process has been low for some time, since a process that forks just before it is
// raised leaves a low child. It misses a child only if the fork takes longer. The outcomes include every given
// container; one without processes has succeeded.
func (p *Processes) Raise(ctx context.Context, wanted map[string]spec.Limit) map[string]Outcome {
	outcomes := map[string]Outcome{}
	open := map[string]int{} // remaining clean passes, by container that may have a low process
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

// raise raises a container's low processes. The error is that of the last one that could not be raised.
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

// Specs edits the specs that a runtime stores for running containers, from which later execs take their limits.
type Specs interface {
	// ApplyRunning adds the grant to a container's stored spec, and reports whether that changed the spec.
	ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error)
}

// SpecOutcome is the result for a container and its stored spec.
type SpecOutcome struct {
	Outcome
	SpecChanged bool  // the stored spec was raised
	SpecErr     error // why later execs may have a low limit
}

// RaiseWithSpecs raises running containers, given by ID: first their processes, then the stored specs, and then once
// more the processes, since some may have been created from the old spec meanwhile. Without specs, later execs keep the
// old limit. If a container's processes could not be raised, its stored spec stays unchanged.
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
