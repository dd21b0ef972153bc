// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// lastWords is how many lines of a failed test the table repeats.
const lastWords = 10

// noTests is what a program of tests prints where its pattern matches none of them. It ends with 0 then.
const noTests = "testing: warning: no tests to run"

// logged matches the first line of what a test logs, or of what ended its program.
var logged = regexp.MustCompile(`^(\S+\.(go|mjs):\d+|panic|fatal error): `)

// failedPackage matches the line that go test prints last of a package with a failure, for the package's name.
var failedPackage = regexp.MustCompile(`^FAIL\t(\S+)`)

// results are the tests in a part's output. Subtests belong to their test, but a skipped one is listed by itself.
type results struct {
	passed    int
	failed    []failure
	skipped   []string // each with its reason
	slow      event    // the longest test
	unmatched bool     // a pattern of tests matched none

	running []string            // the tests of this package that have begun and not ended, subtests among them
	said    map[string][]string // what each of them has logged last
	counted int                 // failures before this package
}

// failure is a test that failed, and the first lines of what it logged last.
type failure struct {
	test string
	said []string
}

// event is a line of go tool test2json.
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// count reads the output of `go test -v` until it ends. Output of other programs counts as no test.
func (r *results) count(ctx context.Context, output io.Reader) error {
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t") // -t: with the time that each took
	convert.Stdin = output
	events, err := convert.StdoutPipe()
	if err != nil {
		return err
	}
	if err := convert.Start(); err != nil {
		return fmt.Errorf("read the tests' output: %w", err)
	}
	r.said = map[string][]string{}
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return convert.Wait()
		} else if err != nil {
			return fmt.Errorf("read the tests' output: %w", err)
		}
		r.add(e)
	}
}

func (r *results) add(e event) {
	line := strings.TrimSpace(e.Output)
	if line == noTests {
		r.unmatched = true
	}
	if e.Test == "" {
		if failed := failedPackage.FindStringSubmatch(line); failed != nil {
			r.endFailed(failed[1], line)
		}
		return
	}
	switch e.Action {
	case "run":
		r.running = append(r.running, e.Test)
	case "output":
		if logged.MatchString(line) {
			r.said[e.Test] = append(r.said[e.Test], line)
			r.said[e.Test] = r.said[e.Test][max(0, len(r.said[e.Test])-lastWords):]
		}
	case "skip":
		reason := ""
		if said := r.end(e.Test); len(said) > 0 {
			reason = said[len(said)-1]
		}
		r.skipped = append(r.skipped, fmt.Sprintf("%s (%s)", e.Test, reason))
	case "fail":
		r.failed = append(r.failed, failure{e.Test, r.end(e.Test)})
	case "pass":
		r.end(e.Test)
		if strings.Contains(e.Test, "/") {
			return
		}
		r.passed++
		if e.Elapsed > r.slow.Elapsed {
			r.slow = e
		}
	}
}

// end forgets a test, since another package can have one of the same name, and returns what it has logged last.
func (r *results) end(test string) []string {
	said := r.said[test]
	delete(r.said, test)
	r.running = slices.DeleteFunc(r.running, func(name string) bool { return name == test })
	return said
}

// endFailed counts what go test counts nowhere: a test that ran when its program ended, by its timeout or a panic, and a
// package that fails without a failed test, such as one that does not build.
func (r *results) endFailed(name, line string) {
	for _, test := range slices.Clone(r.running) {
		r.failed = append(r.failed, failure{test + ", which did not end,", r.end(test)})
	}
	if len(r.failed) == r.counted {
		r.failed = append(r.failed, failure{name, []string{line}})
	}
	r.counted = len(r.failed)
}

// longest names the longest test, and how long it took.
func (r *results) longest() string {
	if r.slow.Elapsed < 0.1 {
		return ""
	}
	return fmt.Sprintf("%s %.1fs", r.slow.Test, r.slow.Elapsed)
}
