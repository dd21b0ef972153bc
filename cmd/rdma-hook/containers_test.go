// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/runc"
)

// kill is a hook that ends the container's process, as a user can do while the container is being created.
var kill = specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", `kill -9 "$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p')"`}}

// Many containers start at once. Each one with the hook is raised, even if it ends at once, and no other process is.
func TestHook_containersAtOnce(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector does not see processes that it was not built into")
	}
	const containers, atOnce = 96, 16
	r := runc.New(t)
	hook := r.Hook(build(t))
	kinds := []struct {
		command []string
		hooks   []specs.Hook
		want    string
		dies    bool
	}{
		{command: []string{"sh", "-c", "ulimit -l"}, hooks: []specs.Hook{hook}, want: inShell(r.Most)},
		{command: []string{"sh", "-c", "ulimit -l"}, want: inShell(runc.Low)},
		{command: []string{"true"}, hooks: []specs.Hook{hook}},
		{command: []string{"true"}, hooks: []specs.Hook{kill, hook}, dies: true},
	}
	var bystanders []int
	for range atOnce {
		bystander := exec.CommandContext(t.Context(), "cat")
		if _, err := bystander.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, bystander.Start())
		t.Cleanup(func() { _ = bystander.Wait() }) // killed
		bystanders = append(bystanders, bystander.Process.Pid)
	}
	next := make(chan int)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range next {
				kind := kinds[i%len(kinds)]
				got, err := r.Run(fmt.Sprintf("container-%d", i), kind.command, kind.hooks...)
				if got != kind.want || (err != nil) != kind.dies {
					t.Errorf("%q says %q, want %q: %v", kind.command, got, kind.want, err)
				}
				if err != nil && strings.Contains(err.Error(), "hook") {
					t.Errorf("a hook fails: %v", err)
				}
			}
		})
	}
	for i := range containers {
		next <- i
	}
	close(next)
	all.Wait()
	for _, pid := range bystanders {
		if got, err := limits.New("/").Memlock(pid); err != nil || got.Soft != runc.Low {
			t.Errorf("a process of no container has memlock %s, want %s: %v", got.Soft, runc.Low, err)
		}
	}
}

// inShell returns a limit in the format of the shell's ulimit.
func inShell(limit spec.Limit) string {
	if limit == spec.Unlimited {
		return "unlimited\n"
	}
	return fmt.Sprintln(uint64(limit) >> 10)
}
