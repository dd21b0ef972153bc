// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os/exec"
	"path/filepath"
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
	return buildAt(t, ".")
}

// buildAt builds the program in a directory, or of a file.
func buildAt(t *testing.T, source string) string {
	t.Helper()
	program := filepath.Join(scratch.Dir(t), "program")
	cmd := exec.Command("go", "build", "-o", program, source)
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

// Every container with a CDI device waits for the hook. It may use a few times the CPU time of a Go program that does
// nothing, which takes between one and ten milliseconds depending on the machine, and more if its input is garbage.
func TestHook_startTime(t *testing.T) {
	source := filepath.Join(scratch.Dir(t), "main.go")
	scratch.File(t, source, "package main\n\nfunc main() {}\n", 0o600)
	program, empty := build(t), buildAt(t, source)
	for name, test := range map[string]struct {
		stdin string
		most  time.Duration // times the empty program
	}{
		"no state":         {"", 6},
		"10 MB of garbage": {strings.Repeat("garbage ", 10<<20/8), 25},
	} {
		took, base := time.Hour, time.Hour
		for range 50 {
			_, d := start(t, program, test.stdin, "memlock")
			took = min(took, d)
			_, d = start(t, empty, "")
			base = min(base, d)
		}
		t.Logf("%s: quickest %s, an empty program %s", name, took, base)
		if took > test.most*base {
			t.Errorf("%s: the quickest start takes %s, want %d times %s at most", name, took, test.most, base)
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
