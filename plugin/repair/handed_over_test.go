// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// at runs a function where the clock is some time ahead of that of other calls: each bubble has its own.
func at(t *testing.T, ahead time.Duration, do func()) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		time.Sleep(ahead)
		do()
	})
}

// The clock may be set between two processes: what one has known for some time, the next one has known as long.
func TestClockIsSetBeforeATakeover(t *testing.T) {
	const ahead = 2 * time.Hour
	for name, before := range map[string]bool{"set back": true, "set forward": false} {
		t.Run(name, func(t *testing.T) {
			var text []byte
			at(t, map[bool]time.Duration{true: ahead}[before], func() {
				b := newBench(t, "{}", nil)
				b.Listed([]Container{container("old", verbs)}, true)
				time.Sleep(forgetAfter / 2)
				b.Created(container("young", verbs))
				time.Sleep(forgetAfter/2 + time.Second)
				var err error
				if text, err = json.Marshal(b.Leave()); err != nil {
					t.Fatal(err)
				}
			})
			at(t, map[bool]time.Duration{false: ahead}[before], func() {
				var state State
				if err := json.Unmarshal(text, &state); err != nil {
					t.Fatal(err)
				}
				b := newBench(t, "repair: {mode: report, every: 30s}", nil)
				b.TakeOver(&state, true)
				if next := b.pass(t.Context()); next != 30*time.Second {
					t.Errorf("the next pass is due in %s: nothing starts any more", next)
				}
				if got := b.recorded(); got != "young" {
					t.Errorf("recorded: %q, want the one that may still start", got)
				}
			})
		})
	}
}

// The record travels in a format of its own: a field that is called otherwise needs another number (package plugin).
func TestFormatOfTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "{}", nil)
		all := container("a", verbs)
		all.Container = policy.Container{Namespace: "ns", Pod: "pod", Name: "main", RuntimeHandler: "nvidia",
			Annotations: map[string]string{policy.AnnotationKey: "true"}, HostNetwork: true, Devices: all.Devices,
			MOFED: true, MemoryLimit: 1 << 30}
		all.Memlock = spec.Rlimit{Soft: 8 << 20, Hard: spec.Unlimited}
		b.Listed([]Container{all}, true)
		time.Sleep(time.Minute)
		privileged := container("b")
		privileged.AllDevices = true
		b.Created(privileged)
		b.Unfinished(limitstest.ID("b"), spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes})
		time.Sleep(time.Second)
		left := b.Leave()
		text, err := json.MarshalIndent(left, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "testdata/state.json", string(text)+"\n")
		var read State
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&read); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(left, &read); diff != "" {
			t.Errorf("(-left +read):\n%s", diff)
		}
	})
}
