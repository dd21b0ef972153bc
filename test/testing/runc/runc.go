// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runc runs containers with runc on the test's machine, without a daemon. It does not know what is tested.
package runc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Low is the memlock of the containers: the default of old kernels.
const Low = spec.Limit(64 << 10)

// Runc is a runc program that can run containers on this machine.
type Runc struct {
	// Most is the highest memlock that a container can get.
	Most spec.Limit

	program string
	dir     string // a temporary directory for bundles and for runc's own state
}

// New finds the runc that was built for the tests' node, or otherwise the machine's own. It skips the test if runc
// cannot run containers on this machine. Until the test ends, the memlock of this process is Low, and its containers
// inherit it.
func New(t testing.TB) *Runc {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max <= uint64(Low) {
		t.Skipf("memlock cannot be raised above %d bytes here", limit.Max)
	}
	if err := syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &syscall.Rlimit{Cur: uint64(Low), Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			t.Error(err)
		}
	})
	parts, err := node.Parts()
	if err != nil {
		t.Fatal(err)
	}
	r := &Runc{Most: spec.Limit(limit.Max), program: parts.Runtime("runc"), dir: scratch.Dir(t)}
	if _, err := os.Stat(r.program); err != nil {
		if r.program, err = exec.LookPath("runc"); err != nil {
			t.Skip("no runc here: rdma-node --prepare builds one")
		}
	}
	if out, err := r.Run("try", []string{"true"}); err != nil {
		t.Skipf("no containers here: %v: %s", err, out)
	}
	return r
}

// Hook returns the hook that CDI files contain, with the given rdma-hook program. Its timeout is longer than the
// default, because the machine may be busy.
func (r *Runc) Hook(program string) specs.Hook {
	return specs.Hook{Path: program, Args: []string{"rdma-hook", "memlock", "--memlock",
		r.Most.String(), "--within", "1m"}}
}

// Run runs a command in its own container, which contains the machine's programs and has the hooks, and returns the
// command's output.
func (r *Runc) Run(name string, command []string, hooks ...specs.Hook) (output string, err error) {
	bundle := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		return "", err
	}
	config, err := json.Marshal(container(command, hooks))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	// Low priority leaves the CPU to the tests that run at the same time.
	cmd := exec.Command("nice", "-n", "10", r.program, "--root", filepath.Join(r.dir, "state"), "run",
		"--bundle", bundle, name)
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// container returns the spec of a container whose root file system contains only the machine's programs.
func container(command []string, hooks []specs.Hook) specs.Spec {
	mounts := []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}
	for _, dir := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		if _, err := os.Stat(dir); err == nil {
			mounts = append(mounts, specs.Mount{Destination: dir, Source: dir, Options: []string{"rbind", "ro"}})
		}
	}
	return specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{Args: command, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts:  mounts,
		Hooks:   &specs.Hooks{CreateRuntime: hooks},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
}
