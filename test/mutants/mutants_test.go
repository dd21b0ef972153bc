// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package p

func f(a, b int) (bool, error) {
	if a < b && b > 3 {
		a++
		return true, nil
	}
	log(a)
	x := a == b
	return x, nil
}
`

// Each mutant has a switch. The switch of a mutant inside another one exists whether the other one is on or off.
func TestWithMutants(t *testing.T) {
	all, err := mutants("p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range all {
		all[i].number = i + 1
		names = append(names, all[i].function+": "+all[i].was+": "+all[i].is)
	}
	if diff := cmp.Diff([]string{"f: log(a): nothing", "f: a < b && b > 3: its opposite", "f: a < b && b > 3: ||",
		"f: a < b: <=", "f: b > 3: >=", "f: a++: nothing", "f: true: its opposite", "f: a == b: !="}, names); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	const one, two = `chosenMutant("1")`, `chosenMutant("2")`
	want := `package p

func f(a, b int) (bool, error) {
	if ((` + one + ` && (a < b || b > 3) || !` + one + ` && (a < b && b > 3))) != ` + two + ` {
		a++
		return !chosenMutant("3"), nil
	}
	if !chosenMutant("4") { log(a) }
	x := a == b
	return x, nil
}
`
	chosen := []mutant{all[0], all[1], all[2], all[6]}
	chosen[0].number, chosen[1].number, chosen[2].number, chosen[3].number = 4, 2, 1, 3
	if diff := cmp.Diff(want, withMutants([]byte(source), chosen)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The same mutants are chosen even if other code changes. A different seed chooses others.
func TestChoose(t *testing.T) {
	names := func(text string, seed int) (chosen []string) {
		all, err := mutants("p.go", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range choose(all, seed, 3) {
			chosen = append(chosen, m.name())
		}
		return chosen
	}
	first := names(source, 1)
	if diff := cmp.Diff(first, names("// a comment\n"+source, 1)); diff != "" {
		t.Errorf("after a comment (-before +after):\n%s", diff)
	}
	if cmp.Equal(first, names(source, 2)) {
		t.Errorf("the seed changes nothing: %q", first)
	}
}
