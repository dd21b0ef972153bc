// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// linked links the program into the test's binary. Otherwise, go test would use a cached result after the program has
// changed.
var linked func()

// build builds the program.
func build(t *testing.T) string {
	t.Helper()
	linked = main
	program := filepath.Join(scratch.Dir(t), "rdma-hook")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start runs the program, and returns its exit status and the CPU time that it used.
func start(t *testing.T, program, stdin string, args ...string) (status int, took time.Duration) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// Every container with a CDI device waits for the hook, so the hook uses less than 10 ms of CPU time, and little more
// if its input is garbage.
func TestHook_startTime(t *testing.T) {
	program := build(t)
	for name, test := range map[string]struct {
		stdin string
		most  time.Duration
	}{
		"no state":         {"", 10 * time.Millisecond},
		"10 MB of garbage": {strings.Repeat("garbage ", 10<<20/8), 50 * time.Millisecond},
	} {
		var took []time.Duration
		for range 50 {
			_, d := start(t, program, test.stdin, "memlock")
			took = append(took, d)
		}
		slices.Sort(took)
		t.Logf("%s: quickest %s, median %s", name, took[0], took[len(took)/2])
		if took[0] > test.most {
			t.Errorf("%s: the quickest of %d starts takes %s, want %s at most", name, len(took), took[0], test.most)
		}
	}
}

// A wrong command line does not prevent a container from starting, unless memlock is required.
func TestHook_exitStatus(t *testing.T) {
	program := build(t)
	for args, want := range map[string]int{"": 0, "memlok": 0, "memlock --help": 0, "memlock": 0, "memlock --wrong": 0,
		"memlock --required": 1} {
		if got, _ := start(t, program, "garbage", strings.Fields(args)...); got != want {
			t.Errorf("rdma-hook %s exits with %d, want %d", args, got, want)
		}
	}
}
