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

// kept is how many lines of a failed test's log are kept from its beginning, and how many from its end.
const kept = 20

// noTests is what a test program prints if its pattern matches no test. Its exit status is then 0.
const noTests = "testing: warning: no tests to run"

// module is the prefix of all package names.
const module = "github.com/rdma-spec/rdma-spec/"

var (
	// frame matches the lines that the testing package writes before and after a test's log.
	frame = regexp.MustCompile(`^(=== |--- )`)
	// place matches the file and line at the beginning of a log line.
	place = regexp.MustCompile(`^\S+\.(go|mjs):\d+(:\d+)?: `)
	// failedPackage matches the last line that go test prints for a package that fails, and captures the package's name.
	failedPackage = regexp.MustCompile(`^FAIL\t(\S+)(.*)`)
	// compiled matches the line before the compiler's messages about a package, and captures the package's name.
	compiled = regexp.MustCompile(`^# (\S+)`)
)

// results are the results of the tests in a part's output. Subtests belong to their test, but a skipped subtest is
// listed separately.
type results struct {
	passed    int
	failed    []failure
	skipped   []string // skipped tests, each with its reason
	slow      event    // the longest test
	unmatched bool     // a pattern of tests matched no test

	running  []string            // the tests and subtests of this package that have begun and not ended
	said     map[string][]string // the log of each of them
	counted  int                 // number of failures before this package
	compiler map[string][]string // the compiler's messages about each package
	compiles string              // the package that the current messages are about
}

// failure is a failed test or package, and its log.
type failure struct {
	dir  string // the package's directory, relative to the top directory
	test string
	said []string
}

// event is a line of `go tool test2json`.
type event struct {
	Action, Test, Output string
	Elapsed              float64 // in seconds
}

// count reads the output of `go test -v` to its end. It ignores the output of other programs.
func (r *results) count(ctx context.Context, output io.Reader) error {
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t") // -t adds the duration of each test
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
			r.endRunning()
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

// addOutside reads a line that does not belong to a test: a message from the compiler, or the last line of a package.
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

// reason returns the last line that says why a test was skipped.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		if place.MatchString(line) {
			return line
		}
	}
	return ""
}

// shortened returns a long log without its middle.
func shortened(said []string) []string {
	if left := len(said) - 2*kept; left > 0 {
		middle := fmt.Sprintf("[%d more lines]", left)
		return slices.Concat(said[:kept], []string{middle}, said[len(said)-kept:])
	}
	return said
}

// end returns the log of a test, and deletes the test, because another package can have a test with the same name.
func (r *results) end(test string) []string {
	said := r.said[test]
	delete(r.said, test)
	r.running = slices.DeleteFunc(r.running, func(name string) bool { return name == test })
	return said
}

// endRunning counts what go test does not count: a test that was running when its program ended, because of a timeout
// or a panic.
func (r *results) endRunning() {
	for _, test := range slices.Clone(r.running) {
		r.failed = append(r.failed, failure{test: test + ", which did not end", said: shortened(r.end(test))})
	}
}

// endFailed records where the failed tests of a package are. It also counts a package that fails without a failed test,
// for example because it does not compile.
func (r *results) endFailed(dir, why string) {
	r.endRunning()
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
		if len(said) == 0 { // it imports a package that does not compile
			for _, name := range slices.Sorted(maps.Keys(r.compiler)) {
				said = append(said, r.compiler[name]...)
			}
			clear(r.compiler) // the messages are reported only once
		}
		delete(r.compiler, dir)
		r.failed = append(r.failed, failure{dir: dir, test: strings.TrimSpace(why), said: shortened(said)})
	}
	r.counted = len(r.failed)
}

// longest returns the name of the longest test, and its duration.
func (r *results) longest() string {
	if r.slow.Elapsed < 0.1 {
		return ""
	}
	return fmt.Sprintf("%s %.1fs", r.slow.Test, r.slow.Elapsed)
}
