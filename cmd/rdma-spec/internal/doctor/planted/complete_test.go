// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// neverWrong are the checks that can only tell, or not know.
var neverWrong = []string{"hca-answers", "mtu-same", "efa-pages", "container-devices", "container-shm", "container-gpu"}

// elsewhereOK are the checks of hardware that healthyNode has nothing for.
var elsewhereOK = []string{"efa-pages", "cma"}

// inAddress are IDs that can be typed in the address of a page.
var inAddress = regexp.MustCompile(`^[a-z0-9-]+$`)

// TestChecksAreComplete checks that each check has all that one has, and tells in one message what is missing. -update
// writes the skeleton of its page.
func TestChecksAreComplete(t *testing.T) {
	all := checks()
	for _, c := range all {
		golden.Begin(t, filepath.Join(faultPages, c.ID+".md"), page(c, skeletonTitle, skeleton, nil, doctor.Finding{}))
		if problems := slices.Concat(missing(c, all), unplanted(t, c)); len(problems) > 0 {
			t.Errorf("the check %q is not complete:\n- %s", c.ID, strings.Join(problems, "\n- "))
		}
	}
}

// TestNeeds_haveNoCycle checks that no check needs itself: each round finds one whose needs are all known.
func TestNeeds_haveNoCycle(t *testing.T) {
	all := checks()
	known := map[string]bool{}
	for range all {
		for _, c := range all {
			if !slices.ContainsFunc(c.Needs, func(id string) bool { return !known[id] }) {
				known[c.ID] = true
			}
		}
	}
	if len(known) != len(all) {
		t.Errorf("needs go in a circle: %d of %d checks can be run", len(known), len(all))
	}
}

// missing returns what a check lacks, as what to do about it.
func missing(c doctor.Check, all []doctor.Check) (problems []string) {
	lacks := func(is bool, format string, args ...any) {
		if is {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	ids := map[string]int{}
	for _, other := range all {
		ids[other.ID]++
	}
	lacks(!inAddress.MatchString(c.ID) || ids[c.ID] > 1, "ID: give it a name of its own, of lower-case letters, digits, and hyphens")
	lacks(familyTitles[c.Family] == "", "Family: give it one of familyTitles, or add %q there with its heading", c.Family)
	lacks(!strings.HasSuffix(c.Title, "."), "Title: write as a sentence what holds on a healthy node")
	lacks(!strings.HasSuffix(c.Impact, "."), "Impact: write as a sentence what a fault does")
	lacks(c.Look == nil, "Look: write the function that looks at a node")
	for _, id := range c.Needs {
		lacks(ids[id] == 0, "Needs: there is no check %q", id)
	}
	lacks(len(messagesOf(c.ID, "")) == 0 && c.NoMessages == "",
		"NoMessages: say what people see, or, if a program says something, add its message to the tables of cmd/internal/why")
	_, _, err := written(c.ID)
	lacks(err != nil, "%v", err)
	return problems
}

// unplanted returns what the nodes of this package lack for a check, as what to do about it.
func unplanted(t *testing.T, c doctor.Check) (problems []string) {
	lacks := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	same := func(other doctor.Check) bool { return other.ID == c.ID }
	for _, f := range (fault{}).unplanted().look(t) {
		ofHardware := slices.ContainsFunc(hardware.Checks(), same) && !slices.Contains(elsewhereOK, c.ID)
		if f.Check == c.ID && f.Status != doctor.OK && ofHardware {
			lacks("healthyNode, in fixtures_test.go: add the files with which the check is ok there. It is %q: %s", f.Status, f.Text)
		}
	}
	isPlanted := false
	isWrong := false
	for _, p := range faults() {
		if p.check != c.ID {
			continue
		}
		isPlanted = true
		isWrong = isWrong || p.wants() == doctor.Wrong
		for _, f := range p.look(t) {
			switch {
			case f.Check != c.ID || f.Status != doctor.Wrong:
			case (f.FixType == doctor.FixManual) != asSentence.MatchString(f.Fix):
				lacks("the fix of %q is %s, and has to be a sentence exactly if it is manual. One that is a command has .Command() or "+
					".Disruptive(...) behind it: %s", p.name, f.FixType, f.Fix)
			case f.FixType != doctor.FixManual && weighed(f.Fix) < 0:
				lacks("commands, in side_effects_test.go: add a row for what this fix does, and from whom it takes what: %s", f.Fix)
			}
		}
	}
	switch never := slices.Contains(neverWrong, c.ID); {
	case !isPlanted && !never:
		lacks("a planted fault: add a row to a list of faults_*_test.go here, or, if it is never wrong, to neverWrong above")
	case !isWrong && !never:
		lacks("a planted fault that is wrong: all of it are unknown. Add one, or, if it is never wrong, add the check to neverWrong above")
	case isWrong && never:
		lacks("neverWrong: remove it there, since a planted fault makes it wrong")
	}
	return problems
}
