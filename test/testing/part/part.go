// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package part divides the tests of a package into parts, each of which runs on its own node. A table next to the tests
// assigns each test to a part. The tests in test/suite check that each test is in the table once, and that each part
// has a make target.
package part

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var (
	chosen = flag.String("part", "", "run the tests of these parts, such as main,smoke; -test.run=/NAME chooses among their subtests")
	needs  = flag.String("needs", "", "print what tests of this name need beside the programs, and run none: parts of the node, and release")
)

// Row lists tests of one part that need the same things. A part can have several rows.
type Row struct {
	Part string
	// Node is the value of rdma-node's flag --parts, which builds what these tests need.
	Node string
	// Release means that the tests install what `make release` writes.
	Release bool
	// Again means that another row assigns these tests to their own part, and that they run in this part, too.
	Again bool
	Tests []func(*testing.T)
}

// Table assigns the tests of a package to parts.
type Table []Row

// selections are the values of --parts in ascending order. Each value includes the previous ones.
var selections = []string{"main", "core", "critest", "all"}

// Choose carries out the flags -part and -needs: it selects the tests to run, or prints what tests need and ends the
// process. Call it after flag.Parse and before the tests run.
func (table Table) Choose() {
	var err error
	switch run := flag.Lookup("test.run"); {
	case *needs != "":
		var answer string
		if answer, err = table.needsOf(*needs); err == nil {
			fmt.Println(answer)
			os.Exit(0)
		}
	case *chosen != "":
		var pattern string
		if pattern, err = table.pattern(*chosen, run.Value.String()); err == nil {
			err = run.Value.Set(pattern)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// pattern returns a value of -test.run that matches the tests of the parts, which are separated by commas. subtests is
// "" or "/PATTERN", and selects subtests of these tests.
func (table Table) pattern(parts, subtests string) (string, error) {
	if subtests != "" && !strings.HasPrefix(subtests, "/") {
		return "", fmt.Errorf("-part %s and -test.run %s: choose either a part or a test", parts, subtests)
	}
	var names []string
	for _, name := range strings.Split(parts, ",") {
		before := len(names)
		for _, row := range table {
			if row.Part == name {
				names = append(names, row.names()...)
			}
		}
		if len(names) == before {
			return "", fmt.Errorf("no part is called %q", name)
		}
	}
	return "^(" + strings.Join(names, "|") + ")$" + subtests, nil
}

// needsOf returns what the tests need whose whole name the pattern matches: a value of --parts, followed by " release"
// if the tests need a release.
func (table Table) needsOf(pattern string) (string, error) {
	top, _, _ := strings.Cut(pattern, "/")
	name, err := regexp.Compile("^(" + top + ")$")
	if err != nil {
		return "", err
	}
	found := false
	most := 0
	release := false
	for _, row := range table {
		if !row.Again && slices.ContainsFunc(row.names(), name.MatchString) {
			found = true
			most = max(most, slices.Index(selections, row.Node))
			release = release || row.Release
		}
	}
	switch {
	case !found:
		return "", fmt.Errorf("no test is called %q", pattern)
	case release:
		return selections[most] + " release", nil
	}
	return selections[most], nil
}

func (r Row) names() (names []string) {
	for _, test := range r.Tests {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		names = append(names, name[strings.LastIndex(name, ".")+1:])
	}
	return names
}
