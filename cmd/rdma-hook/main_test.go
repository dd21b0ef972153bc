// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// linked makes the program a part of the test's binary. Otherwise go test would show a cached result where the program
// has changed.
var linked func()

// build builds the program.
func build(t *testing.T) string {
	t.Helper()
	linked = main
	program := filepath.Join(scratch.Folder(t), "rdma-hook")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start runs the program, and returns its exit status and how much of a CPU's time it took.
func start(t *testing.T, program, stdin string, args ...string) (status int, took time.Duration) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// Every container with a CDI device waits for the hook: it starts and ends in less than 10 ms of a CPU. 10 MB of
// garbage cost little more.
func TestStart(t *testing.T) {
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

// A wrong call keeps no container from starting, unless memlock is required.
func TestExitStatus(t *testing.T) {
	program := build(t)
	for args, want := range map[string]int{"": 0, "memlok": 0, "memlock --help": 0, "memlock": 0, "memlock --wrong": 0,
		"memlock --required": 1} {
		if got, _ := start(t, program, "garbage", strings.Fields(args)...); got != want {
			t.Errorf("rdma-hook %s exits with %d, want %d", args, got, want)
		}
	}
}

// A state whose process has ended is an error.
func TestProcessThatHasEnded(t *testing.T) {
	program, bundle := build(t), scratch.Folder(t)
	scratch.File(t, filepath.Join(bundle, "config.json"), "{}", 0o600)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	state := fmt.Sprintf(`{"id":"web","pid":%d,"bundle":%q}`, ended.Process.Pid, bundle)
	for want, args := range [][]string{{}, {"--required"}} {
		if got, _ := start(t, program, state, append([]string{"memlock", "--memlock", "1Mi", "--within", "1m"},
			args...)...); got != want {
			t.Errorf("rdma-hook memlock %q <%s exits with %d, want %d", args, state, got, want)
		}
	}
}

// What only the other programs need would make the hook start slower.
func TestImportsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 50 {
		t.Fatalf("%d packages found, want more", len(packages))
	}
	for _, module := range []string{
		"github.com/containerd", "github.com/spf13/cobra", "github.com/prometheus", "github.com/sirupsen",
		"google.golang.org", "go.yaml.in",
		"sigs.k8s.io/yaml", "k8s.io/kubelet", "tags.cncf.io", "net/http",
	} {
		for _, pkg := range packages {
			if pkg == module || strings.HasPrefix(pkg, module+"/") {
				t.Errorf("the hook links %s", pkg)
			}
		}
	}
}
