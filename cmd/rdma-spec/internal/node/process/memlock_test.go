// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
)

const low, unlimited = spec.Limit(8 << 20), spec.Unlimited

// reading is a reading of processes, each with one soft and one hard limit.
func reading(limits ...spec.Rlimit) Reading {
	var r Reading
	for i, l := range limits {
		r.Processes = append(r.Processes, Limited{PID: 1000 + i, Memlock: l})
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
		"enough":                        {reading(both(unlimited)), unlimited, Sufficient},
		"more than enough":              {reading(both(unlimited)), low, Sufficient},
		"enough, spec too":              {reading(both(unlimited)).WithSpec(both(unlimited), true), unlimited, Sufficient},
		"enough, spec sets none":        {reading(both(unlimited)).WithSpec(spec.Rlimit{}, false), unlimited, Sufficient},
		"enough, spec low":              {reading(both(unlimited)).WithSpec(both(low), true), unlimited, SpecBelow},
		"enough, spec zero":             {reading(both(unlimited)).WithSpec(both(0), true), unlimited, SpecBelow},
		"enough, spec's soft limit low": {reading(both(unlimited)).WithSpec(softLow, true), unlimited, SpecBelow},
		"low":                           {reading(both(low)), unlimited, Below},
		"one low":                       {reading(both(unlimited), both(low), both(unlimited)), unlimited, Below},
		"lowered, the hard limit too":   {reading(both(low)).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered":                       {reading(softLow).WithSpec(both(unlimited), true), unlimited, Lowered},
		"lowered to 0": {reading(spec.Rlimit{Hard: unlimited}).WithSpec(both(unlimited),
			true), unlimited, Lowered},
		"lowered, spec not known": {reading(softLow), unlimited, Lowered},
		"one lowered, another the hard limit too": {reading(softLow, both(16<<20)).WithSpec(both(unlimited),
			true), unlimited, Lowered},
		"one lowered, another low, spec not known":        {reading(softLow, both(16<<20)), unlimited, Below},
		"the runtime's soft limit is low":                 {reading(softLow).WithSpec(spec.Rlimit{}, false), unlimited, Below},
		"the spec's soft limit is low":                    {reading(softLow).WithSpec(softLow, true), unlimited, Below},
		"the hard limit is enough, and below unlimited":   {reading(spec.Rlimit{Soft: low, Hard: 1 << 30}), 1 << 30, Lowered},
		"the hard limit is more than low, and not enough": {reading(spec.Rlimit{Soft: low, Hard: 1 << 30}), 2 << 30, Below},
		"processes not seen, spec enough":                 {reading().WithSpec(both(unlimited), true), unlimited, Sufficient},
		"processes not seen, spec low":                    {reading().WithSpec(softLow, true), unlimited, Below},
		"processes not seen, spec sets none":              {reading().WithSpec(spec.Rlimit{}, false), unlimited, Unknown},
		"nothing known":                                   {reading(), unlimited, Unknown},
		"the policy gives none":                           {reading(both(low)), 0, Sufficient},
	} {
		if got := test.reading.Judge(test.want); got != test.verdict {
			t.Errorf("%s: %s, want %s", name, got, test.verdict)
		}
	}
}

func TestLowest(t *testing.T) {
	r := reading(spec.Rlimit{Soft: 5, Hard: 9}, spec.Rlimit{Soft: 6, Hard: 7})
	if got, known := r.Lowest(); got != (spec.Rlimit{Soft: 5, Hard: 7}) || !known || r.Low(6) != 1 || r.Low(7) != 2 {
		t.Errorf("%+v, %t; %d are below 6, %d below 7", got, known, r.Low(6), r.Low(7))
	}
}
