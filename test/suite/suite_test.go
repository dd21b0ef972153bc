// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestParseParts(t *testing.T) {
	for _, args := range [][]string{nil, {"unit"}, {"unit="}, {"unit=0"}, {"unit=two"}, {"=1"}, {"=1:"},
		{"unit=1:"}, {"unit=1:unit"}, {"node=1:prepare", "prepare=1"}} {
		if parts, err := parseParts(args, 2); err == nil {
			t.Errorf("%q are the parts %v", args, parts)
		}
	}
	parts, err := parseParts([]string{"big=9"}, 2)
	if err != nil || parts[0].name != "big" || parts[0].places != 2 {
		t.Errorf("a part larger than the host: %+v, %v", parts, err)
	}
}

// Every part runs once. The first part that fits starts next, and parts never use more places than there are.
func TestSchedule(t *testing.T) {
	parts, err := parseParts([]string{"one=1", "both=2", "two=1", "three=1"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	busy := 0
	together := make(chan struct{}) // closed when one and two run at the same time
	schedule(parts, 2, func(p *part) {
		mu.Lock()
		order = append(order, p.name)
		busy += p.places
		if busy > 2 {
			t.Errorf("%d places are taken", busy)
		}
		if p.name == "two" {
			close(together)
		}
		mu.Unlock()
		if p.name == "one" {
			<-together
		}
		mu.Lock()
		busy -= p.places
		mu.Unlock()
	})
	// "both" waits for two free places, so smaller parts start before it. Which one of "three" and "both" is last depends
	// on which part ends first.
	if len(order) != 4 || order[0] != "one" && order[0] != "two" {
		t.Errorf("the parts ran in the order %q", order)
	}
}

func TestResults(t *testing.T) {
	const output = `go build of something
# github.com/rdma-spec/rdma-spec/two [github.com/rdma-spec/rdma-spec/two.test]
two/two_test.go:3:1: undefined: x
# github.com/rdma-spec/rdma-spec/other
other/other.go:4:2: undefined: y
=== RUN   TestGood
=== RUN   TestGood/sub
--- PASS: TestGood (1.50s)
    --- PASS: TestGood/sub (0.50s)
=== RUN   TestSkipped
    some_test.go:7: needs a node
        and time
--- SKIP: TestSkipped (0.00s)
=== RUN   TestBad
=== RUN   TestBad/sub
    some_test.go:8: in the subtest
=== NAME  TestBad
    some_test.go:9: got 1, want 2
        on two lines
    some_test.go:11: and more
--- FAIL: TestBad (0.10s)
    --- FAIL: TestBad/sub (0.05s)
=== RUN   TestTable
=== RUN   TestTable/row
    some_test.go:12: wrong
--- FAIL: TestTable (0.10s)
    --- FAIL: TestTable/row (0.05s)
FAIL
FAIL	github.com/rdma-spec/rdma-spec/one	0.1s
FAIL	github.com/rdma-spec/rdma-spec/two [build failed]
FAIL	github.com/rdma-spec/rdma-spec/imports/other [build failed]
FAIL	github.com/rdma-spec/rdma-spec/imports/other/too [build failed]
=== RUN   TestGood
--- PASS: TestGood (0.00s)
=== RUN   TestHangs
    some_test.go:4: begins
panic: test timed out after 10m0s
	running tests:
		TestHangs (9m50s)
FAIL	github.com/rdma-spec/rdma-spec/three	600.0s
=== RUN   TestOnNode
panic: at once
`
	var got results
	if err := got.count(t.Context(), strings.NewReader(output)); err != nil {
		t.Fatal(err)
	}
	if got.passed != 2 || got.longest() != "TestGood 1.5s" {
		t.Errorf("%d tests passed, the longest is %s", got.passed, got.longest())
	}
	want := []failure{
		{"one", "TestBad/sub", []string{"one/some_test.go:8: in the subtest"}},
		{"one", "TestBad", []string{"one/some_test.go:9: got 1, want 2", "    on two lines", "one/some_test.go:11: and more"}},
		{"one", "TestTable/row", []string{"one/some_test.go:12: wrong"}},
		{"two", "[build failed]", []string{"two/two_test.go:3:1: undefined: x"}},
		{"imports/other", "[build failed]", []string{"other/other.go:4:2: undefined: y"}},
		{"imports/other/too", "[build failed]", nil},
		{"three", "TestHangs, which did not end", []string{"three/some_test.go:4: begins", "panic: test timed out after 10m0s",
			"\trunning tests:", "\t\tTestHangs (9m50s)"}},
		{"", "TestOnNode", []string{"panic: at once"}},
	}
	if diff := cmp.Diff(want, got.failed, cmp.AllowUnexported(failure{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"TestSkipped (some_test.go:7: needs a node)"}, got.skipped); diff != "" {
		t.Error(diff)
	}
}

// A test program on a node prints no line for its package, so a test that a timeout ends appears only as a test that did
// not end.
func TestTimeoutOnNode(t *testing.T) {
	const output = `=== RUN   TestGood
--- PASS: TestGood (0.00s)
=== RUN   TestHangs
=== RUN   TestHangs/sub
    some_test.go:4: begins
panic: test timed out after 29m0s
	running tests:
		TestHangs/sub (9m50s)
`
	var got results
	if err := got.count(t.Context(), strings.NewReader(output)); err != nil {
		t.Fatal(err)
	}
	want := []failure{
		{"", "TestHangs, which did not end", nil},
		{"", "TestHangs/sub, which did not end", []string{"some_test.go:4: begins", "panic: test timed out after 29m0s",
			"\trunning tests:", "\t\tTestHangs/sub (9m50s)"}},
	}
	if diff := cmp.Diff(want, got.failed, cmp.AllowUnexported(failure{})); diff != "" || got.passed != 1 {
		t.Errorf("%d passed\n%s", got.passed, diff)
	}
}

func TestShortened(t *testing.T) {
	said := make([]string, 2*kept+3)
	for i := range said {
		said[i] = fmt.Sprint(i)
	}
	got := shortened(said)
	if len(got) != 2*kept+1 || got[0] != "0" || got[kept] != "[3 more lines]" || got[2*kept] != said[len(said)-1] {
		t.Errorf("%q", got)
	}
	if diff := cmp.Diff(said[:2*kept], shortened(said[:2*kept])); diff != "" {
		t.Error(diff)
	}
}

// A part waits for the part that makes what it needs, even if places are free. If that part failed, the waiting part is
// not run.
func TestPartsThatWait(t *testing.T) {
	parts, err := parseParts([]string{"prepare=2", "node=1:prepare", "unit=1"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	unitRan := make(chan struct{})
	schedule(parts, 3, func(p *part) {
		if p.name == "prepare" {
			<-unitRan // a core is free for it
		}
		mu.Lock()
		order = append(order, p.name)
		mu.Unlock()
		if p.name == "unit" {
			close(unitRan)
		}
	})
	if diff := cmp.Diff([]string{"unit", "prepare", "node"}, order); diff != "" {
		t.Error(diff)
	}
	prepare := part{name: "prepare", failed: errors.New("exit status 2")}
	node := part{name: "node", after: &prepare}
	if node.run(t.Context(), io.Discard); fmt.Sprint(node.failed) != "not run: prepare failed" {
		t.Error(node.failed)
	}
}

// If one of a part's test programs runs no test, the part fails, although its target succeeds.
func TestPatternThatMatchesNoTest(t *testing.T) {
	t.Chdir(scratch.Dir(t))
	const makefile = "good bad:\n\t@echo '=== RUN   TestGood'; echo '--- PASS: TestGood (0.00s)'; echo PASS\n" +
		"bad: none\nnone: good\n\t@echo '" + noTests + "' >&2; echo PASS\n"
	if err := errors.Join(os.WriteFile("Makefile", []byte(makefile), 0o600), os.MkdirAll(logDir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, wantError := range map[string]string{"good": "<nil>", "bad": "a pattern of tests matches none"} {
		p := part{name: name}
		p.run(t.Context(), io.Discard)
		if got := fmt.Sprint(p.failed); got != wantError {
			t.Errorf("%s: %s, want %s", name, got, wantError)
		}
	}
}

func TestReport(t *testing.T) {
	t.Chdir(scratch.Dir(t))
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		t.Fatal(err)
	}
	scratch.File(t, "bin/log/build.log", "first\n"+strings.Repeat("no rule\n", lastLines), 0o600)
	parts := []*part{
		{name: "short", places: 1, took: time.Second, tests: results{passed: 3}},
		{name: "long", places: 2, took: time.Minute, computed: 90 * time.Second, tests: results{passed: 1,
			failed:  []failure{{"plugin", "TestBad", []string{"plugin/bad_test.go:1: wrong"}}},
			skipped: []string{"TestNot (why)"}}, failed: errors.New("exit status 2")},
		{name: "build", places: 1, took: 2 * time.Second, failed: errors.New("exit status 2")},
	}
	var out strings.Builder
	printTable(&out, parts, 90*time.Second)
	if err := reportSkipped(&out, parts, false); err != nil {
		t.Fatal(err)
	}
	printFailures(&out, parts)
	want := `
PART   TESTS  FAILED             SKIPPED  TIME  CPU TIME  LONGEST
long   1      1 (exit status 2)  1        1m0s  1m30s     
build  0      0 (exit status 2)  0        2s    0s        
short  3      0                  0        1s    0s        

in 1m30s
4 passed, 2 failed, 1 skipped
bin/log/skipped.log says what was skipped, and why

FAILED in long: plugin TestBad
  plugin/bad_test.go:1: wrong
all that long printed is in bin/log/long.log

FAILED: build: exit status 2
` + strings.Repeat("  no rule\n", lastLines) + `all that build printed is in bin/log/build.log
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	const skipped = "skipped in long: TestNot (why)\n"
	if diff := cmp.Diff(skipped, scratch.Read(t, skippedLog)); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := reportSkipped(&out, parts, true); err != nil || out.String() != skipped {
		t.Errorf("-v prints %q, %v", out.String(), err)
	}
}
