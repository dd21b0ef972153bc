// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// A hundred containers start, sixteen at a time: each is raised, and nobody is raised who is not a container's first
// process.
func TestManyAtOnce(t *testing.T) {
	const containers, atOnce = 100, 16
	k := limitstest.NewKernel(nil)
	k.Change(func() {
		for i := range containers {
			k.Table[2*i+2] = limitstest.NewProcess(limitstest.ID(fmt.Sprint(i)), low)
			k.Table[2*i+3] = limitstest.NewProcess(limitstest.ID(fmt.Sprintf("bystander-%d", i)), low)
		}
	})
	states := make(chan string)
	var failed sync.Map
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for state := range states {
				if status, journal := call(k, strings.NewReader(state)); status != 0 || len(journal) > 0 {
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
		t.Errorf("%s: %q", state, journal)
		return true
	})
	for pid, p := range k.Table {
		if want := map[bool]spec.Limit{true: spec.Unlimited, false: low}[pid%2 == 0]; p.Limit.Soft != want {
			t.Errorf("process %d of container %s has %s, want %s", pid, limitstest.Name(p.Container), p.Limit.Soft, want)
		}
	}
}
