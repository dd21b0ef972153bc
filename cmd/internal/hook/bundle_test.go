// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// The cgroups as runtimes write them into config.json, and as the kernel then shows them.
func TestInCgroup(t *testing.T) {
	for name, test := range map[string]struct {
		spec, proc string
		want       bool
	}{
		"ctr":                        {"/default/web", "0::/default/web", true},
		"cgroup v1":                  {"/docker/abc", "4:memory:/docker/abc\n1:name=systemd:/docker/abc", true},
		"cgroup v1, one controller":  {"/docker/abc", "2:cpu:/\n4:memory:/docker/abc", true},
		"in a container":             {"/docker/abc", "0::/docker/outer/docker/abc", true},
		"relative":                   {"docker/abc", "0::/docker/abc", true},
		"systemd, Docker":            {"system.slice:docker:abc", "0::/system.slice/docker-abc.scope", true},
		"systemd, Podman with crun":  {"machine.slice:libpod:abc", "0::/machine.slice/libpod-abc.scope/container", true},
		"systemd, Podman, rootless":  {"user.slice:libpod:abc", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-abc.scope/container", true},
		"systemd, nested slices":     {"machine-a.slice:libpod:abc", "0::/machine.slice/machine-a.slice/libpod-abc.scope", true},
		"systemd, no prefix":         {"system.slice::abc", "0::/system.slice/abc.scope", true},
		"systemd, a slice":           {"system.slice:x:abc.slice", "0::/system.slice/abc.slice", true},
		"systemd, without systemd":   {"system.slice:docker:abc", "0::/system.slice:docker:abc", true},
		"none, runc":                 {"", "0::/user.slice/web", true},
		"none, crun":                 {"", "0::/system.slice/crun-web.scope/container", true},
		"another":                    {"/default/web", "0::/default/web2", false},
		"another that ends so":       {"/web", "0::/default/otherweb", false},
		"another scope":              {"system.slice:docker:abc", "0::/system.slice/docker-xabc.scope", false},
		"its parent":                 {"/default/web", "0::/default", false},
		"below it":                   {"/default/web", "0::/default/web/child", false},
		"two below it":               {"/default/web", "0::/default/web/container/container", false},
		"root":                       {"/", "0::/", false},
		"nothing":                    {"", "", false},
		"no name":                    {"system.slice:docker:", "0::/system.slice/docker-.scope", false},
		"dots":                       {"/..", "0::/", false},
		"dots to another":            {"/default/../other", "0::/default/web", false},
		"garbage":                    {"/default/web", "/default/web", false},
		"a name with an empty scope": {"::", "0::/-.scope", false},
	} {
		t.Run(name, func(t *testing.T) {
			var b bundle
			b.Linux.CgroupsPath = test.spec
			if got := b.inCgroup([]byte(test.proc+"\n"), "web"); got != test.want {
				t.Errorf("%q in %q: %t", test.proc, test.spec, got)
			}
		})
	}
}

// A thousand containers start, sixteen at a time, while processes end and their IDs become those of others: each is raised, or has ended,
// and nobody is raised who is not a container's first process.
func TestManyAtOnce(t *testing.T) {
	const containers, atOnce = 1000, 16
	k := limitstest.NewKernel(nil)
	bystanders := map[int]*limitstest.Process{}
	k.Change(func() {
		for i := range containers {
			k.Table[2*i+2] = limitstest.NewProcess(limitstest.ID(fmt.Sprint(i)), low)
			bystanders[2*i+3] = limitstest.NewProcess(limitstest.ID(fmt.Sprintf("bystander-%d", i)), low)
			k.Table[2*i+3] = bystanders[2*i+3]
		}
	})
	// Every tenth container's process ends when the kernel is asked some time later, and a bystander gets its ID.
	k.Happens = func(asked int) {
		if pid := 2 * (asked % containers); pid%20 == 0 && bystanders[pid] == nil {
			bystanders[pid] = limitstest.NewProcess(limitstest.ID(fmt.Sprintf("late-%d", pid)), low)
			k.Table[pid] = bystanders[pid]
		}
	}
	states := make(chan string)
	var failed sync.Map
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for state := range states {
				if status, journal := call(k, strings.NewReader(state)); status != 0 || len(journal) > 1 {
					failed.Store(state, journal)
				}
			}
		})
	}
	for i := range containers {
		id := limitstest.ID(fmt.Sprint(i))
		states <- stateOf(id, 2*i+2, newBundle(t, configOf(id, "")))
	}
	close(states)
	all.Wait()
	failed.Range(func(state, journal any) bool {
		t.Errorf("%s keeps its container from starting: %q", state, journal)
		return true
	})
	raised := 0
	for pid, p := range k.Table {
		switch {
		case bystanders[pid] != nil && p.Limit.Soft != low:
			t.Errorf("process %d of container %s has %s", pid, limitstest.Name(p.Container), p.Limit.Soft)
		case bystanders[pid] == nil && p.Limit.Soft != spec.Unlimited:
			t.Errorf("the first process of container %s has %s", limitstest.Name(p.Container), p.Limit.Soft)
		case bystanders[pid] == nil:
			raised++
		}
	}
	if raised < containers/2 || raised == containers {
		t.Errorf("%d of %d are raised: this tests nothing", raised, containers)
	}
}
