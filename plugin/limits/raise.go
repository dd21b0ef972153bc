// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

const (
	// passesMost bounds how often all processes are gone through. Three passes are enough where nothing forks.
	passesMost = 50
	// cleanPasses is how many passes in a row must find nothing low, the last of them when forks have ended. One is not enough: a
	// process may fork when the processes have been listed, and end before it is looked at.
	cleanPasses = 2
)

// Outcome is what became of a container's processes.
type Outcome struct {
	Raised int   // how many were raised
	Err    error // why some may still be low
}

// Raise raises RLIMIT_MEMLOCK of every process of containers, given by ID, to at least what is wanted; no limit is lowered.
//
// The processes are gone through again until none is low: one that forks just before it is raised leaves a child that is low. Raise
// waits for forks that may have begun before; a child is missed only where the fork takes more than ten seconds.
// The outcomes have every container that was given; one without processes is done.
func (p *Processes) Raise(ctx context.Context, wanted map[string]spec.Limit) map[string]Outcome {
	r := raising{Processes: p, wanted: wanted, outcomes: map[string]Outcome{}, open: map[string]int{}, forks: map[string][]thread{}}
	for id := range wanted {
		r.outcomes[id] = Outcome{}
		r.open[id] = cleanPasses
	}
	if err := r.all(ctx); err != nil {
		for id := range r.open {
			r.close(id, err)
		}
	}
	return r.outcomes
}

// raising is one call of Raise.
type raising struct {
	*Processes
	wanted   map[string]spec.Limit
	outcomes map[string]Outcome
	open     map[string]int      // clean passes to go, of the containers of which some process may be low
	forks    map[string][]thread // of processes that were raised, by container: those that may be in a fork
}

// all makes passes until no container is open. The error is about all that still are.
func (r *raising) all(ctx context.Context) error {
	if err := r.kernel.Changeable(); err != nil {
		return err
	}
	patience := forkPatience
	for range passesMost {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := r.Containers()
		if err != nil {
			return err
		}
		var forks []thread
		for id := range r.open {
			if r.pass(id, found[id]) {
				forks = append(forks, r.forks[id]...)
				delete(r.forks, id)
			}
		}
		if len(r.open) == 0 {
			return nil
		}
		patience = r.awaitForks(ctx, forks, patience)
	}
	return fmt.Errorf("its processes were gone through %d times and there were new ones with a low limit each time: try again when it forks less", passesMost)
}

// pass raises those processes of a container that are low, and closes the container if there was none in enough passes. It reports whether
// there was none now.
func (r *raising) pass(id string, pids []int) (clean bool) {
	raised := 0
	var failed error
	for _, pid := range pids {
		was, err := r.RaiseOne(pid, r.wanted[id], inContainer(id))
		switch {
		case errors.Is(err, ErrGone):
		case err != nil:
			failed = err
		case was:
			raised++
			r.forks[id] = append(r.forks[id], r.forking(pid)...)
		}
	}
	o := r.outcomes[id]
	o.Raised += raised
	r.outcomes[id] = o
	if raised > 0 {
		r.open[id] = cleanPasses
	} else {
		r.open[id]--
	}
	if failed != nil || r.open[id] == 0 {
		r.close(id, failed)
	}
	return raised == 0
}

func (r *raising) close(id string, err error) {
	o := r.outcomes[id]
	o.Err = err
	r.outcomes[id] = o
	delete(r.open, id)
}
