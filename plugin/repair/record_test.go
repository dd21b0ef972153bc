// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

func randomID() string {
	var id [32]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// plain is a container of one of a hundred deployments.
func plain(i int) Container {
	return Container{
		Container: policy.Container{
			Namespace: fmt.Sprintf("team-%d", i%20), Pod: fmt.Sprintf("deployment-%d-7c9f8b6d5c-%05d", i%100, i),
			Name: "main", MemoryLimit: 1 << 30,
			Devices: []policy.Device{{Path: "/dev/sda", Type: "b"}},
		},
		ID: randomID(), Sandbox: randomID(),
	}
}

// The record is bounded in bytes, whatever is recorded; what does not fit is counted, and logged once.
func TestRecordIsBounded(t *testing.T) {
	onBench(t, "{}", processes{"first": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("first", verbs)}, true)
		const count, size = 200, 100_000
		for i := range count {
			c := container("a")
			c.ID, c.Namespace = randomID(), fmt.Sprint(i)
			c.Annotations = map[string]string{policy.AnnotationKey: strings.Repeat("x", size)}
			b.Created(c)
		}
		all, omitted := b.record.all(), b.record.omitted.Load()
		if len(all) < recordBytesMost/size*9/10 || (len(all)-1)*size > recordBytesMost || b.record.bytes > recordBytesMost ||
			len(all)+int(omitted) != count+1 {
			t.Errorf("%d containers are recorded, in %d bytes, %d are not", len(all), b.record.bytes, omitted)
		}
		expectWords(t, b.log.String(), 1, "the record of containers is full (16 MiB)")
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}, Unrecorded: omitted})

		// When others are gone, there is room again.
		b.Listed([]Container{container("first", verbs)}, true)
		b.Created(container("second", verbs))
		b.expectRecorded("first second")
	})
}

// What a pass has found gone is what it saw: a container of the same ID that was listed or created meanwhile stays.
func TestSlowPassForgetsWhatItSaw(t *testing.T) {
	for name, again := range map[string]func(*bench){
		"listed":  func(b *bench) { b.Listed([]Container{container("a", verbs)}, true) },
		"created": func(b *bench) { b.Created(container("a", verbs)) },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, "{}", processes{"other": {unlimited}}, func(t *testing.T, b *bench) {
				b.Listed([]Container{container("a", verbs), container("other", verbs)}, true)
				time.Sleep(forgetAfter + time.Second)
				b.kernel.Lists = func() {
					b.kernel.Lists = nil
					again(b)
				}
				b.passes(1)
				if got := b.recorded(); !strings.Contains(got, "a") {
					t.Errorf("recorded: %q, want what is listed or created again", got)
				}
			})
		})
	}
}

// Passes, requests and other policies get along.
func TestConcurrency(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}, "b": {unlimited}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{"a": "{}", "b": "{}"}
		go b.Run(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 200 {
				b.Listed([]Container{container("a", verbs), container("b", verbs)}, i%2 == 0)
				b.Stats()
				if i%10 == 0 {
					b.use([]string{"{repair: {mode: fix}}", "repair: {mode: off}", "optIn: {resources: [rdma/*]}"}[i/10%3])
				}
				sleepAMoment()
			}
		}()
		for i := range 1000 {
			b.Created(plain(i))
			b.Unfinished(limitstest.ID("a"), spec.Grant{IPCLock: spec.IPCLockYes})
			sleepAMoment()
		}
		<-done
		b.use("repair: {mode: fix}")
		b.Listed([]Container{container("a", verbs), container("b", verbs)}, true)
		sleepAPass()
		if s, ok := b.Stats(); !ok || s.Memlock[Sufficient] != 2 || s.Looked.IsZero() {
			t.Errorf("at the end: %+v", s)
		}
	})
}

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
				must.Succeed(t, json.Unmarshal(text, &state))
				b := newBench(t, "repair: {mode: report, every: 30s}", nil)
				b.TakeOver(&state, true)
				if next := b.pass(t.Context()); next != 30*time.Second {
					t.Errorf("the next pass is due in %s: nothing starts any more", next)
				}
				b.expectRecorded("young")
			})
		})
	}
}

// The record travels in a format of its own: a field that is called otherwise needs another number (package plugin).
func TestFormatOfTheRecord(t *testing.T) {
	onBench(t, "{}", nil, func(t *testing.T, b *bench) {
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
		text := golden.JSON(t, left)
		golden.Compare(t, "testdata/state.json", text)
		var read State
		must.Succeed(t, json.Unmarshal([]byte(text), &read))
		expect.Equal(t, "what is read of it", left, &read)
	})
}
