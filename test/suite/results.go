// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Of what a failed test has logged, this many lines are kept from the beginning, and as many from the end.
const kept = 20

// noTests is what a program of tests prints where its pattern matches none of them. It ends with 0 then.
const noTests = "testing: warning: no tests to run"

// module is what the names of all packages begin with.
const module = "github.com/rdma-spec/rdma-spec/"

var (
	// frame matches the lines that the testing package writes around what a test logs.
	frame = regexp.MustCompile(`^(=== |--- )`)
	// place matches the file and the line that a line of a log begins with.
	place = regexp.MustCompile(`^\S+\.(go|mjs):\d+(:\d+)?: `)
	// failedPackage matches the line that go test prints last of a package with a failure, for the package's name.
	failedPackage = regexp.MustCompile(`^FAIL\t(\S+)(.*)`)
	// compiled matches the line before what the compiler says of a package, for its name.
	compiled = regexp.MustCompile(`^# (\S+)`)
)

// results are the tests in a part's output. Subtests belong to their test, but a skipped one is listed by itself.
type results struct {
	passed    int
	failed    []failure
	skipped   []string // each with its reason
	slow      event    // the longest test
	unmatched bool     // a pattern of tests matched none

	running  []string            // the tests of this package that have begun and not ended, subtests among them
	said     map[string][]string // what each of them has logged
	counted  int                 // failures before this package
	compiler map[string][]string // what the compiler has said of each package
	compiles string              // the package that it speaks of
}

// failure is a test that failed, and what it has logged; or a package.
type failure struct {
	dir  string // the package, below the top directory
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
	r.compiler = map[string][]string{}
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
	line := strings.TrimRight(e.Output, "\n ")
	if strings.TrimSpace(line) == noTests {
		r.unmatched = true
	}
	if e.Test == "" {
		r.addOutside(line)
		return
	}
	switch e.Action {
	case "run":
		r.running = append(r.running, e.Test)
	case "output":
		line = strings.TrimPrefix(line, "    ")
		if line != "" && !frame.MatchString(strings.TrimSpace(line)) {
			r.said[e.Test] = append(r.said[e.Test], line)
		}
	case "skip":
		r.skipped = append(r.skipped, fmt.Sprintf("%s (%s)", e.Test, reason(r.end(e.Test))))
	case "fail":
		said := r.end(e.Test)
		below := func(f failure) bool { return strings.HasPrefix(f.test, e.Test+"/") }
		if len(said) > 0 || !slices.ContainsFunc(r.failed[r.counted:], below) {
			r.failed = append(r.failed, failure{test: e.Test, said: shortened(said)})
		}
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

// addOutside reads a line that no test has written: the compiler's, or the last one of a package.
func (r *results) addOutside(line string) {
	if failed := failedPackage.FindStringSubmatch(line); failed != nil {
		r.endFailed(strings.TrimPrefix(failed[1], module), failed[2])
	}
	switch header := compiled.FindStringSubmatch(line); {
	case header != nil:
		r.compiles = strings.TrimPrefix(header[1], module)
	case r.compiles != "" && place.MatchString(line):
		r.compiler[r.compiles] = append(r.compiler[r.compiles], line)
	}
}

// reason is the last line that says why a test was skipped.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		if place.MatchString(line) {
			return line
		}
	}
	return ""
}

// shortened leaves the middle of a long log out.
func shortened(said []string) []string {
	if left := len(said) - 2*kept; left > 0 {
		middle := fmt.Sprintf("[%d more lines]", left)
		return slices.Concat(said[:kept], []string{middle}, said[len(said)-kept:])
	}
	return said
}

// end forgets a test, since another package can have one of the same name, and returns what it has logged.
func (r *results) end(test string) []string {
	said := r.said[test]
	delete(r.said, test)
	r.running = slices.DeleteFunc(r.running, func(name string) bool { return name == test })
	return said
}

// endFailed says where the failed tests of a package are, and counts what go test counts nowhere: a test that ran when
// its program ended, by its timeout or a panic, and a package that fails without a failed test, such as one that does
// not build.
func (r *results) endFailed(dir, why string) {
	for _, test := range slices.Clone(r.running) {
		r.failed = append(r.failed, failure{test: test + ", which did not end", said: shortened(r.end(test))})
	}
	ofPackage := r.failed[r.counted:]
	for i := range ofPackage {
		ofPackage[i].dir = dir
		for j, line := range ofPackage[i].said {
			if place.MatchString(line) {
				ofPackage[i].said[j] = filepath.Join(dir, line)
			}
		}
	}
	if len(ofPackage) == 0 {
		said := r.compiler[dir]
		if len(said) == 0 { // it imports what does not compile
			for _, name := range slices.Sorted(maps.Keys(r.compiler)) {
				said = append(said, r.compiler[name]...)
			}
			clear(r.compiler) // it is said once
		}
		delete(r.compiler, dir)
		r.failed = append(r.failed, failure{dir: dir, test: strings.TrimSpace(why), said: shortened(said)})
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
