// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// With repair off nothing is kept, however much is created.
func TestRepairOff(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("a", verbs)}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}})
		b.Unfinished(limitstest.ID("a"), spec.Grant{IPCLock: spec.IPCLockYes})
		b.use("repair: {mode: off}")
		b.passes(1)
		b.Listed([]Container{container("a", verbs)}, true)
		b.Created(container("b", verbs))
		b.Unfinished(limitstest.ID("b"), spec.Grant{IPCLock: spec.IPCLockYes})
		if _, ok := b.Stats(); ok || b.recorded() != "" || b.record.bytes > 0 || len(b.states) > 0 {
			t.Errorf("statistics: %t; recorded: %q, %d bytes, %d states", ok, b.recorded(), b.record.bytes, len(b.states))
		}
		b.log.Reset()
		b.use("{}")
		b.Created(container("a", verbs))
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}})
		const says = "repair is on, for containers that are created from now on"
		expectWords(t, b.log.String(), 1, says)

		// No runtime lists its containers to a process that takes over from one with repair off.
		next := newBench(t, "{}", nil)
		b.use("repair: {mode: off}")
		next.TakeOver(b.Leave(), true)
		expectWords(t, next.log.String(), 1, says)
	})
}

// Before there is a policy, containers are recorded, and forgotten once they have ended.
func TestPolicyComesLater(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Use(nil)
		b.Listed([]Container{container("a", verbs), container("ended", verbs)}, true)
		b.passes(1)
		time.Sleep(forgetAfter + time.Second)
		b.passes(1)
		if _, ok := b.Stats(); ok || b.recorded() != "a" {
			t.Errorf("statistics without a policy: %t; recorded: %q, want a", ok, b.recorded())
		}
		b.use("{}")
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}})
	})
}

// A pass in which the program ends says nothing of what it could not finish.
func TestEndDuringAFix(t *testing.T) {
	onBench(t, "repair: {mode: fix}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.specs.texts["a"] = "{}"
		b.Listed([]Container{container("a", verbs)}, true)
		ctx, end := context.WithCancel(t.Context())
		b.kernel.Lists = func() { // first by the look, then by the fix
			b.kernel.Lists = end
		}
		b.pass(ctx)
		if log := b.log.String(); ctx.Err() == nil || log != "" {
			t.Errorf("ended: %v; the log says:\n%s", ctx.Err(), log)
		}
	})
}

// A pass that ends under another policy than it began with raises nothing and says nothing.
func TestPolicyChangesDuringAPass(t *testing.T) {
	onBench(t, "repair: {mode: fix}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("a", verbs)}, true)
		b.specs.texts["a"] = "{}"
		b.kernel.Lists = func() {
			b.kernel.Lists = nil
			b.use("{memlock: 1Mi, repair: {mode: fix}}")
		}
		if text := b.passes(1); text != "" {
			t.Errorf("the log says: %s", text)
		}
		if _, ok := b.Stats(); ok || b.kernel.Sets() > 0 {
			t.Errorf("statistics: %t, limits were set %d times", ok, b.kernel.Sets())
		}
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
	})
}

// Run makes passes as often as the policy says, more often after a listing, and at once where another policy is in
// force.
func TestRun(t *testing.T) {
	onBench(t, "repair: {every: 20s}", processes{"a": {unlimited}}, func(t *testing.T, b *bench) {
		go b.Run(t.Context())
		b.Listed([]Container{container("a", verbs)}, true)
		looked := func(after time.Duration) time.Duration {
			time.Sleep(after)
			synctest.Wait()
			s, ok := b.Stats()
			if !ok {
				t.Fatal("no pass")
			}
			return time.Since(s.Looked)
		}
		for range 9 {
			if ago := looked(time.Second); ago > 0 {
				t.Errorf("after the listing: looked %s ago", ago)
			}
		}
		looked(2 * time.Second)
		before := looked(0)
		if ago := looked(18 * time.Second); ago != before+18*time.Second {
			t.Errorf("looked %s ago, want %s", ago, before+18*time.Second)
		}
		b.use("{memlock: 1Gi, repair: {every: 1h}}")
		if ago := looked(0); ago != 0 {
			t.Errorf("looked %s ago, and the policy is another one", ago)
		}
		if ago := looked(59 * time.Minute); ago != 59*time.Minute {
			t.Errorf("looked %s ago, want 59m", ago)
		}
		if ago := looked(time.Minute); ago != 0 {
			t.Errorf("looked %s ago after an hour", ago)
		}
	})
}

func TestNilRepair(t *testing.T) {
	var r *Loop
	r.Use(nil)
	r.Listed([]Container{container("a")}, true)
	r.Created(container("b"))
	r.Unfinished(limitstest.ID("b"), spec.Grant{})
	r.Run(t.Context())
	if _, ok := r.Stats(); ok {
		t.Error("it has statistics")
	}
}
