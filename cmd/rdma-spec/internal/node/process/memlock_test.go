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

func TestReading_Given(t *testing.T) {
	softLow := spec.Rlimit{Soft: low, Hard: unlimited}
	const unknown = 0
	for name, test := range map[string]struct {
		reading Reading
		want    spec.Limit
	}{
		"of the process":                  {reading(both(low)), low},
		"of the lowest process":           {reading(both(unlimited), both(low), both(unlimited)), low},
		"spec too":                        {reading(both(unlimited)).WithSpec(both(unlimited), true), unlimited},
		"spec sets none":                  {reading(both(unlimited)).WithSpec(spec.Rlimit{}, false), unlimited},
		"spec low":                        {reading(both(unlimited)).WithSpec(both(low), true), low},
		"spec zero":                       {reading(both(unlimited)).WithSpec(both(0), true), 0},
		"spec's soft limit low":           {reading(both(unlimited)).WithSpec(softLow, true), low},
		"both limits lowered":             {reading(both(low)).WithSpec(both(unlimited), true), unlimited},
		"lowered":                         {reading(softLow).WithSpec(both(unlimited), true), unlimited},
		"lowered, spec not known":         {reading(softLow), unlimited},
		"one lowered, another both":       {reading(softLow, both(16<<20)).WithSpec(both(unlimited), true), unlimited},
		"the same, spec not known":        {reading(softLow, both(16<<20)), 16 << 20},
		"the runtime's soft limit is low": {reading(softLow).WithSpec(spec.Rlimit{}, false), low},
		"no processes, spec":              {reading().WithSpec(both(unlimited), true), unlimited},
		"no processes, spec low":          {reading().WithSpec(softLow, true), low},
		"no processes, spec sets none":    {reading().WithSpec(spec.Rlimit{}, false), unknown},
		"nothing":                         {reading(), unknown},
	} {
		wantKnown := test.want != unknown || test.reading.SpecSets
		if got, known := test.reading.Given(); got != test.want || known != wantKnown {
			t.Errorf("%s: %s, known %t; want %s", name, got, known, test.want)
		}
	}
}

func TestReading_Lowest(t *testing.T) {
	r := reading(spec.Rlimit{Soft: 5, Hard: 9}, spec.Rlimit{Soft: 6, Hard: 7})
	if got, known := r.Lowest(); got != (spec.Rlimit{Soft: 5, Hard: 7}) || !known || r.Low(6) != 1 || r.Low(7) != 2 {
		t.Errorf("%+v, %t; %d are below 6, %d below 7", got, known, r.Low(6), r.Low(7))
	}
}
