// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/race"
)

// A container comes back as it was, except for devices that are not a signal.
func TestRecordKeepsAll(t *testing.T) {
	full := policy.Container{
		Namespace: "ml", Pod: "train-0", Name: "main", RuntimeHandler: "runc", HostNetwork: true, MemoryLimit: math.MaxInt64 - 1,
		Annotations: map[string]string{policy.AnnotationKey: "{memlock: 1Gi}\n\x00\"é"},
		Devices: []policy.Device{
			verbs, {Path: "/dev/\"odd\" \x00", Type: "u", Major: -1, Minor: math.MaxInt64}, {Type: "c", Major: math.MinInt64}, {Path: strings.Repeat("x", 300), Type: "c"},
		},
	}
	fields := reflect.ValueOf(full)
	for i := range fields.NumField() {
		if name := fields.Type().Field(i).Name; fields.Field(i).IsZero() && name != "Resources" && name != "AllDevices" {
			t.Errorf("this test does not know the field %s", name)
		}
	}
	block := full
	block.Devices = append([]policy.Device{{Path: "/dev/sda", Type: "b", Major: 8}}, full.Devices...)
	privileged := full
	privileged.AllDevices = true
	without := privileged
	without.Devices = nil
	for name, test := range map[string]struct{ given, want policy.Container }{
		"empty": {}, "full": {full, full}, "with a block device": {block, full}, "privileged": {privileged, without},
	} {
		e := newRecorded(Container{Container: test.given, ID: limitstest.ID("a")}, 0, true)
		if diff := cmp.Diff(test.want, e.container()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestContainerIDs(t *testing.T) {
	good := limitstest.ID("a")
	if e := newRecorded(Container{ID: good}, 0, true); e == nil || e.id.String() != good {
		t.Errorf("%s is recorded as %v", good, e)
	}
	for _, bad := range []string{"", "a", good[:63], good[:62], good + "0", good + "00", good[:63] + "g", strings.Repeat("é", 32)} {
		if newRecorded(Container{ID: bad}, 0, true) != nil {
			t.Errorf("%q is recorded", bad)
		}
	}
}

func randomID() string {
	var id [32]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// plain is a container of one of a hundred deployments.
func plain(i int) Container {
	return Container{
		Container: policy.Container{
			Namespace: fmt.Sprintf("team-%d", i%20), Pod: fmt.Sprintf("deployment-%d-7c9f8b6d5c-%05d", i%100, i), Name: "main", MemoryLimit: 1 << 30,
			Devices: []policy.Device{{Path: "/dev/sda", Type: "b"}},
		},
		ID: randomID(), Sandbox: randomID(),
	}
}

// A plain container, as nearly all are, takes 150 bytes at most; so do the workers of a job, whatever devices they hold.
func TestRecordIsSmall(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector takes more memory")
	}
	const count, most = 8_000, 150
	worker := func(i int) Container {
		c := plain(i)
		for j := range 24 {
			c.Devices = append(c.Devices, policy.Device{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", j), Type: "c", Major: 231, Minor: int64(192 + j)})
		}
		return c
	}
	for name, kind := range map[string]func(int) Container{"plain": plain, "worker": worker} {
		r := &record{}
		before := heap()
		for i := range count {
			if r.add(kind(i)) {
				t.Fatalf("%s: the record is full with %d", name, i)
			}
		}
		each := float64(heap()-before) / count
		t.Logf("%s: %.0f bytes a container", name, each)
		if each > most || each < 72 { // its ID, sandbox and pod's name alone
			t.Errorf("%s: %.0f bytes a container, want %d at most", name, each, most)
		}
		runtime.KeepAlive(r)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // and what the first one finalises
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The record is bounded in bytes, whatever is recorded; what does not fit is counted, and logged once.
func TestRecordIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "{}", map[string][]spec.Limit{"first": {low}})
		b.Listed([]Container{container("first", verbs)}, true)
		const count, size = 200, 100_000
		for i := range count {
			c := container("a")
			c.ID, c.Namespace = randomID(), fmt.Sprint(i)
			c.Annotations = map[string]string{policy.AnnotationKey: strings.Repeat("x", size)}
			b.Created(c)
		}
		all, omitted := b.record.all(), b.record.left()
		if len(all) < recordBytesMost/size*9/10 || (len(all)-1)*size > recordBytesMost || b.record.bytes > recordBytesMost || len(all)+int(omitted) != count+1 {
			t.Errorf("%d containers are recorded, in %d bytes, %d are not", len(all), b.record.bytes, omitted)
		}
		expectWords(t, b.log.String(), 1, "the record of containers is full (16 MiB)")
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}, Unrecorded: omitted})

		// When others are gone, there is room again.
		b.Listed([]Container{container("first", verbs)}, true)
		b.Created(container("second", verbs))
		if got := b.recorded(); got != "first second" {
			t.Errorf("recorded: %s", got)
		}
	})
}

// What a pass has found gone is what it saw: a container of the same ID that was listed or created meanwhile stays.
func TestSlowPassForgetsWhatItSaw(t *testing.T) {
	for name, anew := range map[string]func(*bench){
		"listed":  func(b *bench) { b.Listed([]Container{container("a", verbs)}, true) },
		"created": func(b *bench) { b.Created(container("a", verbs)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, "{}", map[string][]spec.Limit{"other": {unlimited}})
				b.Listed([]Container{container("a", verbs), container("other", verbs)}, true)
				sleepUntilOverdue()
				b.kernel.Lists = func() {
					b.kernel.Lists = nil
					anew(b)
				}
				b.passes(1)
				if got := b.recorded(); !strings.Contains(got, "a") {
					t.Errorf("recorded: %q, want what is listed or created anew", got)
				}
			})
		})
	}
}

// Passes, requests and other policies get along.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "{}", map[string][]spec.Limit{"a": {low}, "b": {unlimited}})
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
