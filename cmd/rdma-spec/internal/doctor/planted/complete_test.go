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
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// neverWrong are the checks that can only tell, or not know.
var neverWrong = []string{"hca-answers", "mtu-same", "efa-pages", "container-devices", "container-shm", "container-gpu"}

// inAddress are IDs that can be typed in the address of a page.
var inAddress = regexp.MustCompile(`^[a-z0-9-]+$`)

// TestChecksAreComplete checks that each check has all that one has, and tells in one message what is missing. -update
// writes the skeleton of its page.
func TestChecksAreComplete(t *testing.T) {
	all := checks()
	for _, c := range all {
		golden.Begin(t, filepath.Join(faultPages, c.ID+".md"), page(c, skeletonTitle, skeleton, nil, doctor.Finding{}))
		if problems := missing(c, all); len(problems) > 0 {
			t.Errorf("the check %q is not complete:\n- %s", c.ID, strings.Join(problems, "\n- "))
		}
	}
}

// TestNeedsEnd checks that no check needs itself: each round finds one whose needs are all known.
func TestNeedsEnd(t *testing.T) {
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
	wrong := slices.ContainsFunc(faults(), func(f fault) bool { return f.check == c.ID && (f.status == "" || f.status == doctor.Wrong) })
	never := slices.Contains(neverWrong, c.ID)
	lacks(!wrong && !never, "a planted fault: add a row to a list of faults_*_test.go here, or, if it is never wrong, to neverWrong")
	lacks(wrong && never, "neverWrong: remove it there, since a planted fault makes it wrong")
	_, _, err := written(c.ID)
	lacks(err != nil, "%v", err)
	return problems
}
