// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"testing"

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
		"enough":                        {has(both(unlimited)), unlimited, Sufficient},
		"more than enough":              {has(both(unlimited)), low, Sufficient},
		"enough, spec too":              {has(both(unlimited)).WithSpec(both(unlimited), true), unlimited, Sufficient},
		"enough, spec sets none":        {has(both(unlimited)).WithSpec(spec.Rlimit{}, false), unlimited, Sufficient},
		"enough, spec low":              {has(both(unlimited)).WithSpec(both(low), true), unlimited, SpecBelow},
		"enough, spec zero":             {has(both(unlimited)).WithSpec(both(0), true), unlimited, SpecBelow},
		"enough, spec's soft limit low": {has(both(unlimited)).WithSpec(softLow, true), unlimited, SpecBelow},
		"low":                           {has(both(low)), unlimited, Below},
		"one low":                       {has(both(unlimited), both(low), both(unlimited)), unlimited, Below},
		"lowered, the hard limit too":   {has(both(low)).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered":                       {has(softLow).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered to 0": {has(spec.Rlimit{Hard: unlimited}).WithSpec(both(unlimited),
			true), unlimited, Lowered},
		"lowered, spec not known": {has(softLow), unlimited, Lowered},
		"one lowered, another the hard limit too": {has(softLow, both(16<<20)).WithSpec(both(unlimited),
			true), unlimited, Lowered},
		"one lowered, another low, spec not known":        {has(softLow, both(16<<20)), unlimited, Below},
		"the runtime's soft limit is low":                 {has(softLow).WithSpec(spec.Rlimit{}, false), unlimited, Below},
		"the spec's soft limit is low":                    {has(softLow).WithSpec(softLow, true), unlimited, Below},
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
