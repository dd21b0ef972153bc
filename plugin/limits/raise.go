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
	// cleanPasses is the number of consecutive passes that must find no process with a low limit. The pause between passes
	// is betweenPasses. A child copies its parent's limits early in a fork, but /proc lists the child only at the end of
	// the fork. If the fork began before the parent's limit was raised, a child with a low limit appears later. During the
	// fork, the kernel copies the parent's page tables, which takes 15 ms for each GiB in small pages.
	cleanPasses   = 3
	betweenPasses = 300 * time.Millisecond
)

// Outcome is the result for a container's processes.
type Outcome struct {
	Raised int   // number of raised processes
	Err    error // why some processes might still have a low limit
}

// Raise raises the RLIMIT_MEMLOCK of every process of the given containers to at least the wanted limits, which are
// given by container ID. Raise never lowers a limit.
//
// Raise repeats its passes until no process has had a low limit for some time. If a process forks just before its limit
// is raised, the child has a low limit. Raise misses a child only if the fork takes longer than all clean passes
// together. The outcomes include every given container. A container without processes counts as a success.
func (p *Processes) Raise(ctx context.Context, wanted map[string]spec.Limit) map[string]Outcome {
	outcomes := map[string]Outcome{}
	open := map[string]int{} // remaining clean passes for each container that might have a process with a low limit
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

// raise raises the low limits of a container's processes. The error comes from the last process whose limit could not
// be raised.
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

// Specs edits the specs that a runtime stores for running containers. Processes that exec starts later take their
// limits from the stored spec.
type Specs interface {
	// ApplyRunning adds the grant to a container's stored spec, and reports whether the spec changed.
	ApplyRunning(ctx context.Context, container string, grant spec.Grant) (changed bool, err error)
}

// SpecOutcome is the result for a container's processes and its stored spec.
type SpecOutcome struct {
	Outcome
	SpecChanged bool  // the stored spec was raised
	SpecErr     error // why processes that exec starts later might have a low limit
}

// RaiseWithSpecs raises the limits of running containers, given by ID. RaiseWithSpecs raises the limits of the
// processes, then the limits in the stored specs, and then the limits of the processes a second time. The second time
// is necessary, since exec can start processes from the old spec in the meantime. If specs is nil, processes that exec
// starts later keep the old limit. If the limits of a container's processes could not be raised, the container's stored
// spec stays unchanged.
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
