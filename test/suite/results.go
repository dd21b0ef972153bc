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
	"strings"
)

// lastWords is how many lines of a failed test the table repeats.
const lastWords = 5

// noTests is what a program of tests prints where its pattern matches none of them. It ends with 0 then.
const noTests = "testing: warning: no tests to run"

// logged matches the first line of what a test logs.
var logged = regexp.MustCompile(`^\S+\.(go|mjs):\d+: `)

// results are the tests in a part's output. Subtests belong to their test, but a skipped one is listed by itself.
type results struct {
	passed    int
	failed    []failure
	skipped   []string // each with its reason
	slow      event    // the longest test
	unmatched bool     // a pattern of tests matched none
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
	said := map[string][]string{} // what each test that runs has logged last; other packages can have one of the same name
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return convert.Wait()
		} else if err != nil {
			return fmt.Errorf("read the tests' output: %w", err)
		}
		r.add(e, said)
	}
}

func (r *results) add(e event, said map[string][]string) {
	if strings.TrimSpace(e.Output) == noTests {
		r.unmatched = true
	}
	if e.Test == "" {
		return
	}
	subtest := strings.Contains(e.Test, "/")
	switch e.Action {
	case "output":
		if line := strings.TrimSpace(e.Output); logged.MatchString(line) {
			said[e.Test] = append(said[e.Test], line)
			said[e.Test] = said[e.Test][max(0, len(said[e.Test])-lastWords):]
		}
	case "skip":
		reason := ""
		if n := len(said[e.Test]); n > 0 {
			reason = said[e.Test][n-1]
		}
		r.skipped = append(r.skipped, fmt.Sprintf("%s (%s)", e.Test, reason))
		delete(said, e.Test)
	case "fail":
		r.failed = append(r.failed, failure{e.Test, said[e.Test]})
		delete(said, e.Test)
	case "pass":
		delete(said, e.Test)
		if subtest {
			return
		}
		r.passed++
		if e.Elapsed > r.slow.Elapsed {
			r.slow = e
		}
	}
}

// longest names the longest test, and how long it took.
func (r *results) longest() string {
	if r.slow.Elapsed < 0.1 {
		return ""
	}
	return fmt.Sprintf("%s %.1fs", r.slow.Test, r.slow.Elapsed)
}
