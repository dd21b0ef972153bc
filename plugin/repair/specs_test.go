// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// stored is the text of a spec with a memlock and a memory limit.
func storedText(memlock spec.Limit, memory int64) string {
	return fmt.Sprintf(`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":%[1]d,"soft":%[1]d}]},"linux":{"resources":{"memory":{"limit":%d}}}}`, uint64(memlock), memory)
}

// CRI may write its own old copy of a spec over ours: processes have enough, and later execs would not.
func TestStoredSpecThatIsWrittenOver(t *testing.T) {
	onBench(t, "{}", processes{"a": {unlimited}}, func(t *testing.T, b *bench) {
		b.specs.texts["a"] = storedText(unlimited, 0)
		b.Listed([]Container{container("a", verbs)}, true)
		want := Stats{Memlock: map[Verdict]int{Sufficient: 1}, WithoutIPCLock: 0}
		b.expect(want)
		b.specs.texts["a"] = storedText(low, 0)
		b.expect(want) // it was read a moment ago
		time.Sleep(specAgain)
		below := Stats{Memlock: map[Verdict]int{SpecBelow: 1}}
		b.expect(below)
		b.expect(below)
		expectWords(t, b.log.String(), 1,
			"its stored spec is below policy, and so are later execs into it: recreate the pod, set repair.mode: fix, or run "+
				"rdma-spec repair")
		expectWords(t, b.log.String(), 1, "memlock=unlimited pod=default/pod-a rule=default spec=8Mi wanted=unlimited")

		b.use("repair: {mode: fix}")
		b.specs.err = errors.New("containerd did not answer")
		b.expect(Stats{Memlock: map[Verdict]int{SpecBelow: 1}, Failed: 1})
		b.specs.err = nil
		fixed := Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1, Failed: 1}
		b.expect(fixed)
		expectWords(t, b.log.String(), 1, "its stored spec was below policy, and is raised")
		if got := b.specs.texts["a"]; got != storedText(unlimited, 0) {
			t.Errorf("its stored spec is %s", got)
		}
		b.expect(fixed)
	})
}

// A container's memory limit is what its stored spec says: a pod may be resized in place.
func TestMemoryLimitAfterResize(t *testing.T) {
	onBench(t, "{memlock: memory-limit, repair: {mode: fix}}", processes{"a": {1 << 30}}, func(t *testing.T, b *bench) {
		b.specs.texts["a"] = storedText(1<<30, 1<<30)
		c := container("a", verbs)
		c.MemoryLimit = 1 << 30
		b.Listed([]Container{c}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
		b.specs.texts["a"] = storedText(1<<30, 2<<30)
		time.Sleep(specAgain)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1})
		b.expectSoft("a", 2<<30)
		if got := b.specs.texts["a"]; got != storedText(2<<30, 2<<30) {
			t.Errorf("its stored spec is %s", got)
		}
		b.specs.texts["a"] = storedText(2<<30, 1<<30) // smaller again: nothing is lowered
		time.Sleep(specAgain)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1})
		b.expectSoft("a", 2<<30)
	})
}

// A pass that reads another memory limit judges by it, also where it is the one that the container was created with.
func TestMemoryLimitAsItWas(t *testing.T) {
	onBench(t, "memlock: memory-limit", processes{"a": {1 << 30}}, func(_ *testing.T, b *bench) {
		b.specs.texts["a"] = storedText(1<<30, 2<<30)
		c := container("a", verbs)
		c.MemoryLimit = 1 << 30
		b.Listed([]Container{c}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}})
		b.specs.texts["a"] = storedText(1<<30, 1<<30)
		time.Sleep(specAgain)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
	})
}

// A pass reads few stored specs, and each has its turn, also where some cannot be read.
func TestStoredSpecsAreReadInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 3 * specsMost
		b := newBench(t, "{}", nil)
		var all []Container
		for i := range count {
			name := fmt.Sprintf("a-%02d", i)
			b.kernel.Run(limitstest.ID(name), unlimited)
			b.specs.texts[name] = "not a spec"
			if i >= specsMost {
				b.specs.texts[name] = storedText(low, 0)
			}
			all = append(all, container(name, verbs))
		}
		for i := range 100 {
			all = append(all, container(fmt.Sprintf("plain-%d", i)))
		}
		b.Listed(all, true)
		for pass := range 5 {
			b.passes(1)
			if want := min((pass+1)*specsMost, count); b.specs.reads != want {
				t.Errorf("after pass %d: %d specs were read, want %d", pass, b.specs.reads, want)
			}
		}
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: specsMost, SpecBelow: 2 * specsMost}})
		time.Sleep(specAgain)
		for range 5 {
			b.passes(1)
		}
		if b.specs.reads != 2*count {
			t.Errorf("%d specs were read, want each twice: %d", b.specs.reads, 2*count)
		}
	})
}

// Containers whose stored specs lack the CAP_IPC_LOCK that the policy gives are counted. One whose author dropped all
// is given none.
func TestContainersWithoutIPCLock(t *testing.T) {
	has := func(capabilities string) string {
		return strings.ReplaceAll(`{"process":{"capabilities":{"bounding":[C],"effective":[C],"permitted":[C]}}}`, "C",
			capabilities)
	}
	const usual = `"CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_FSETID","CAP_FOWNER","CAP_MKNOD","CAP_NET_RAW","CAP_SETGID","CAP_SETUID"`
	onBench(t, "{}", processes{"lacks": {unlimited}, "has": {unlimited},
		"dropped": {unlimited}, "plain": {unlimited}}, func(_ *testing.T, b *bench) {
		b.specs.texts = map[string]string{"lacks": has(usual), "has": has(usual + `,"CAP_IPC_LOCK"`),
			"dropped": has(`"CAP_CHOWN"`), "plain": has(usual)}
		b.Listed([]Container{container("lacks", verbs), container("has", verbs), container("dropped", verbs),
			container("plain")}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 3}, WithoutIPCLock: 1})
		b.use("ipcLock: false")
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 3}})
	})
}

// An edit that failed when the container was created is tried again until it holds, or the container is gone. What is not
// recorded is not: the creation's log must not promise it.
func TestUnfinishedEdits(t *testing.T) {
	grant := spec.Grant{IPCLock: spec.IPCLockYes}
	onBench(t, "ipcLock: always", processes{"a": {unlimited}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{"a": "{}", "b": "{}"}
		b.specs.err = errors.New("containerd did not answer")
		b.Listed(nil, true)
		for _, name := range []string{"a", "b", "gone"} { // b is not started yet
			b.Created(container(name, verbs))
		}
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
		b.specs.err = nil
		time.Sleep(specAgain)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, WithoutIPCLock: 1}) // its stored spec says so
		b.specs.err = errors.New("containerd did not answer")
		for name, again := range map[string]bool{"a": true, "b": true, "gone": true, "unknown": false} {
			if got := b.Unfinished(limitstest.ID(name), grant); got != again {
				t.Errorf("%s is tried again: %t", name, got)
			}
		}
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, WithoutIPCLock: 3})
		b.specs.err = nil
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
		expectWords(t, b.log.String(), 2, "the stored spec lacked some of what the container was granted")
		want, err := grant.Apply([]byte("{}"), spec.AllSets)
		if err != nil || b.specs.texts["a"] != string(want) || b.specs.texts["b"] != string(want) {
			t.Errorf("stored specs: %s", b.specs.texts)
		}
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}})
		if left := b.unfinished(); left != 0 {
			t.Errorf("%d are still to be tried", left)
		}
	})
}

// An edit that is tried again says that it has changed something only if it has, and is not made under a policy that no
// longer gives it.
func TestUnfinishedEditsThatChangeNothing(t *testing.T) {
	for name, test := range map[string]struct {
		grant spec.IPCLock
		later string // the policy when containerd answers again
		said  bool   // the log says that the stored spec is right
	}{
		"all capabilities dropped":    {spec.IPCLockUnlessDropped, "{}", true},
		"the policy gives none later": {spec.IPCLockYes, "ipcLock: false", false},
		"nor memlock":                 {spec.IPCLockYes, "optIn: {devices: false}", false},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, "{}", processes{"a": {unlimited}}, func(t *testing.T, b *bench) {
				b.specs.texts = map[string]string{"a": "{}"}
				b.Listed(nil, true)
				b.Created(container("a", verbs))
				b.specs.err = errors.New("containerd did not answer")
				b.Unfinished(limitstest.ID("a"), spec.Grant{IPCLock: test.grant})
				b.passes(1)
				b.specs.err = nil
				b.use(test.later)
				if log := b.passes(1); strings.Contains(log, "spec lacked") || strings.Contains(log,
					"confirmed: ") != test.said || b.specs.texts["a"] != "{}" || b.unfinished() != 0 {
					t.Errorf("stored spec %s, still to be tried: %d; the log says:\n%s", b.specs.texts["a"], b.unfinished(), log)
				}
			})
		})
	}
}

// A container that has ended before its stored spec was to be raised is no failure.
func TestEndedBeforeItsSpecIsRaised(t *testing.T) {
	onBench(t, "repair: {mode: fix}", processes{"a": {8 << 20}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{} // containerd keeps no such container
		b.Listed([]Container{container("a", verbs)}, true)
		if log := b.passes(2); strings.Contains(log, "later execs into it are not") {
			t.Errorf("the log says:\n%s", log)
		}
		if stats, _ := b.Stats(); stats.Failed != 0 {
			t.Errorf("%d failures", stats.Failed)
		}
	})
}
