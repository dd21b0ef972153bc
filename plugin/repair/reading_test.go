// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

const low, unlimited = spec.Limit(8 << 20), spec.Unlimited

// has is a reading of processes, each with one soft and one hard limit.
func has(limits ...spec.Rlimit) Reading {
	var r Reading
	for i, l := range limits {
		r.Processes = append(r.Processes, Process{PID: 1000 + i, Memlock: l})
	}
	return r
}

func both(l spec.Limit) spec.Rlimit { return spec.Rlimit{Soft: l, Hard: l} }

func TestJudge(t *testing.T) {
	softLow := spec.Rlimit{Soft: low, Hard: unlimited}
	for name, test := range map[string]struct {
		reading Reading
		want    spec.Limit
		verdict Verdict
	}{
		"enough":                          {has(both(unlimited)), unlimited, Sufficient},
		"more than enough":                {has(both(unlimited)), low, Sufficient},
		"enough, spec too":                {has(both(unlimited)).WithSpec(both(unlimited), true), unlimited, Sufficient},
		"enough, spec sets none":          {has(both(unlimited)).WithSpec(spec.Rlimit{}, false), unlimited, Sufficient},
		"enough, spec low":                {has(both(unlimited)).WithSpec(both(low), true), unlimited, SpecBelow},
		"enough, spec zero":               {has(both(unlimited)).WithSpec(both(0), true), unlimited, SpecBelow},
		"enough, spec's soft limit low":   {has(both(unlimited)).WithSpec(softLow, true), unlimited, SpecBelow},
		"low":                             {has(both(low)), unlimited, Below},
		"one low":                         {has(both(unlimited), both(low), both(unlimited)), unlimited, Below},
		"low, spec enough":                {has(both(low)).WithSpec(both(unlimited), true), unlimited, Below},
		"lowered":                         {has(softLow).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered to 0":                    {has(spec.Rlimit{Hard: unlimited}).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered, spec not known":         {has(softLow), unlimited, Lowered},
		"one lowered, another low":        {has(softLow, both(16<<20)).WithSpec(both(unlimited), true), unlimited, Below},
		"the runtime's soft limit is low": {has(softLow).WithSpec(spec.Rlimit{}, false), unlimited, Below},
		"the spec's soft limit is low":    {has(softLow).WithSpec(softLow, true), unlimited, Below},
		"the hard limit is enough, and below unlimited":   {has(spec.Rlimit{Soft: low, Hard: 1 << 30}), 1 << 30, Lowered},
		"the hard limit is more than low, and not enough": {has(spec.Rlimit{Soft: low, Hard: 1 << 30}), 2 << 30, Below},
		"processes not seen, spec enough":                 {has().WithSpec(both(unlimited), true), unlimited, Sufficient},
		"processes not seen, spec low":                    {has().WithSpec(softLow, true), unlimited, Below},
		"processes not seen, spec sets none":              {has().WithSpec(spec.Rlimit{}, false), unlimited, Unknown},
		"nothing known":                                   {has(), unlimited, Unknown},
		"the policy gives none":                           {has(both(low)), 0, Sufficient},
	} {
		if got := test.reading.Judge(test.want); got != test.verdict {
			t.Errorf("%s: %s, want %s", name, got, test.verdict)
		}
	}
}

func TestLowest(t *testing.T) {
	r := has(spec.Rlimit{Soft: 5, Hard: 9}, spec.Rlimit{Soft: 6, Hard: 7})
	if got, known := r.Lowest(); got != (spec.Rlimit{Soft: 5, Hard: 7}) || !known || r.Low(6) != 1 || r.Low(7) != 2 {
		t.Errorf("%+v, %t; %d are below 6, %d below 7", got, known, r.Low(6), r.Low(7))
	}
}

// An exec's first process has the runtime's limits for a moment: it counts only if it still has them on the second look.
func TestReadAgain(t *testing.T) {
	id, other := limitstest.ID("a"), limitstest.ID("b")
	kernel := limitstest.NewKernel(map[string][]spec.Limit{id: {unlimited, low, low, low, low}})
	processes := limits.On(kernel)
	all, err := processes.Containers()
	if err != nil {
		t.Fatal(err)
	}
	first := Read(processes, append(all[id], 1)) // nobody has the last one
	if first.Low(unlimited) != 4 || first.Judge(unlimited) != Below {
		t.Errorf("first look: %+v", first)
	}
	kernel.Change(func() {
		kernel.Table[1001].Limit = both(unlimited)          // it got its limits
		delete(kernel.Table, 1002)                          // it has ended
		kernel.Table[1003].Container = other                // another container's process has its ID
		kernel.Table[1005] = limitstest.NewProcess(id, low) // the next exec's
	})
	second := first.ReadAgain(processes, id, unlimited)
	want := Reading{Processes: []Process{{1000, both(unlimited)}, {1001, both(unlimited)}, {1004, both(low)}}}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("second look (-want +got):\n%s", diff)
	}
	kernel.Change(func() { kernel.Table[1004].Limit = both(unlimited) })
	if third := second.ReadAgain(processes, id, unlimited); third.Judge(unlimited) != Sufficient {
		t.Errorf("third look: %+v", third)
	}
}
