// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"

	"github.com/rdma-spec/rdma-spec/spec"
)

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

// RaiseWithSpecs raises containers that run, given by ID: their processes, then the stored specs, and then the processes
// again that were made from the old spec meanwhile. Without specs, later execs keep the old limit. A stored spec is
// left alone where the processes could not be raised.
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
