// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package part divides the tests of a package into parts, each of which runs on a node of its own. A table beside the
// tests says which test is in which part; test/suite checks that it has each test once, and each part a make target.
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

// Row is a part, or those of its tests that need the same.
type Row struct {
	Part string
	// Node is what rdma-node builds for these tests: a value of --parts.
	Node string
	// Release says that they install what `make release` writes.
	Release bool
	// Again says that the tests have a part of their own, and run in this one as well.
	Again bool
	Tests []func(*testing.T)
}

// Table is the tests of a package.
type Table []Row

// selections are the values of --parts, the smallest first.
var selections = []string{"main", "core", "critest", "all"}

// Choose does what -part and -needs say. flag.Parse comes before it, and the tests after it.
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

// pattern returns the pattern of the tests of parts, and of those of their subtests that the pattern behind a slash
// chooses.
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

// needsOf returns what the tests need that a pattern of whole names matches.
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
