// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// fault is planted on a node on which nothing is wrong, and found by one check.
type fault struct {
	name          string
	check, object string
	status        doctor.Status // "" is wrong

	// The node: that of healthyNode, unless of names one of healthyNodes, or node makes one. With plant, it is that of
	// healthy, which has a runtime, the plugin, and containers.
	of   string
	node func() hcatest.Files

	// What is changed on it.
	with    hcatest.Files
	without []string
	plant   func(s *sick)
}

// faults are all planted faults. A new one is a row of a list that fits.
func faults() []fault {
	return slices.Concat(plantedHCAs, plantedPorts, plantedModules, plantedDevices, plantedNetns, plantedGPUs,
		plantedKernel, plantedMemory, plantedKnown, plantedRuntimes, plantedContainers, toldOfContainers)
}

// files is the node with the fault, as a copy of it has the files.
func (p fault) files(t *testing.T) hcatest.Files {
	if p.plant != nil {
		s := healthy()
		p.plant(s)
		return s.listed(t)
	}
	node := healthyNode
	switch {
	case p.of != "":
		node = findKnown(t, p.of).files
	case p.node != nil:
		node = p.node
	}
	return node().Without(p.without...).With(p.with)
}

// found has what all checks find on the nodes with a fault, by its name: several tests look at it.
var found = map[string][]doctor.Finding{}

// look returns what all checks find on the node with the fault.
func (p fault) look(t *testing.T) []doctor.Finding {
	t.Helper()
	if found[p.name] == nil {
		if p.plant != nil {
			s := healthy()
			p.plant(s)
			found[p.name] = s.look(t, checks())
		} else {
			found[p.name] = findings(t, p.files(t))
		}
	}
	return slices.Clone(found[p.name])
}

// unplanted is the node without the fault.
func (p fault) unplanted() fault {
	switch {
	case p.plant != nil:
		return fault{name: "healthy", plant: func(*sick) {}}
	case p.of != "":
		return fault{name: "known: " + p.of, of: p.of}
	case p.node != nil:
		return fault{name: "before " + p.name, node: p.node}
	}
	return fault{name: "healthyNode"}
}

// wants is the status that the fault should be found with.
func (p fault) wants() doctor.Status { return cmp.Or(p.status, doctor.Wrong) }

// is tells whether a finding is what the fault should be found as.
func (p fault) is(f doctor.Finding) bool {
	return f.Check == p.check && f.Status == p.wants() && f.Object == p.object
}

// said is what the doctor says of findings, and how they are fixed, for a golden file.
func said(found ...doctor.Finding) string {
	var text strings.Builder
	for _, f := range found {
		fmt.Fprintf(&text, "%s %s, %s: %s\n", f.Status, f.Check, f.Object, f.Text)
		if f.Fix != "" {
			fmt.Fprintf(&text, "    %s: %s\n", f.FixType, f.Fix)
		}
		if f.Warning != "" {
			fmt.Fprintf(&text, "    warning: %s\n    to see what is affected: %s\n", f.Warning, f.Affected)
		}
	}
	return text.String()
}

// wrong are the findings of a fault.
func wrong(found []doctor.Finding) []doctor.Finding {
	return slices.DeleteFunc(found, func(f doctor.Finding) bool { return f.Status != doctor.Wrong })
}

// asSentence begins a manual fix.
var asSentence = regexp.MustCompile("^[A-Z]|^recreate")

// TestFaults checks that each planted fault is found by its check, that no other check finds anything wrong, and that
// its check does not find it before it is planted.
func TestFaults(t *testing.T) {
	var says golden.Cases
	for _, p := range faults() {
		for _, f := range p.unplanted().look(t) {
			if f.Status == doctor.Wrong || p.is(f) {
				t.Errorf("%s: before it is planted: %+v", p.name, f)
			}
		}
		seen := slices.DeleteFunc(p.look(t), func(f doctor.Finding) bool { return !p.is(f) && f.Status != doctor.Wrong })
		if len(seen) != 1 || !p.is(seen[0]) {
			t.Errorf("%s: want %s about %q, got %+v", p.name, p.check, p.object, seen)
		}
		if slices.ContainsFunc(wrong(slices.Clone(seen)), func(f doctor.Finding) bool { return f.Fix == "" }) {
			t.Errorf("%s: it has no fix: %+v", p.name, seen)
		}
		says.Add(t, p.name, said(seen...))
	}
	says.Compare(t, "testdata/faults.txt")
}
