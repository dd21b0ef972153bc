// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

func TestContainersBelowPolicyAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := policy.Device{Path: verbs.Path, Type: "b", Major: verbs.Major, Minor: verbs.Minor}
		b := newBench(t, "{}", processes{
			"low": {low}, "child-low": {unlimited, low}, "good": {unlimited}, "unrelated": {low}, "disk": {low},
		})
		b.Listed([]Container{
			container("low", verbs), container("child-low", verbs), container("good", verbs), container("unrelated"),
			container("disk", disk), container("ended", verbs),
		}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1, Below: 2}})
		text := b.log.String()
		expectWords(t, text, 1, `pod=default/pod-low`)
		expectWords(t, text, 1, `pod=default/pod-child-low`)
		expectWords(t, text, 2,
			`msg="below policy: recreate the pod, set repair.mode: fix, or run rdma-spec repair" container=main memlock=8Mi`)
		if text := b.passes(3); text != "" {
			t.Errorf("the log says it again: %s", text)
		}
		if n := b.kernel.Sets(); n > 0 {
			t.Errorf("limits were set %d times", n)
		}
		b.kernel.Run(limitstest.ID("low"), unlimited)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 2, Below: 1}})
		b.kernel.Run(limitstest.ID("low"), low)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1, Below: 2}})
		expectWords(t, b.log.String(), 1, `pod=default/pod-low`)
	})
}

func TestContainersBelowPolicyAreRaised(t *testing.T) {
	onBench(t, "{memlock: 16Gi, repair: {mode: fix}}", processes{"low": {low, unlimited, low},
		"good": {unlimited}, "unrelated": {low}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{"low": "{}", "good": "{}", "unrelated": "{}"}
		b.Listed([]Container{container("low", verbs), container("good", verbs), container("unrelated")}, true)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 2}, Raised: 1})
		b.expectSoft("low", 16<<30, unlimited, 16<<30)
		b.expectSoft("unrelated", low)
		want := map[string]string{"low": `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":17179869184,"soft":17179869184}]}}`, "good": "{}", "unrelated": "{}"}
		expect.Equal(t, "stored specs", want, b.specs.texts)
		expectWords(t, b.log.String(), 1,
			`msg="was below policy, and is raised" container=main memlock=8Mi pod=default/pod-low processes=2 rule=default wanted=16Gi`)

		// Another configuration gives more, to those that run as well.
		b.use("{memlock: 32Gi, repair: {mode: fix}}")
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 2}, Raised: 2})
		b.expectSoft("low", 32<<30, unlimited, 32<<30)
	})
}

func TestWhatCannotBeRaised(t *testing.T) {
	onBench(t, "repair: {mode: fix}", processes{"low": {low}}, func(t *testing.T, b *bench) {
		b.specs.texts = map[string]string{"low": "{}"}
		b.specs.err = errors.New("containerd did not answer")
		b.kernel.Refuse = errors.New("setting it: this needs the capability SYS_RESOURCE")
		b.Listed([]Container{container("low", verbs)}, true)
		expectWords(t, b.passes(2), 1,
			"below policy, and cannot be raised: setting it: this needs the capability SYS_RESOURCE")
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}, Failed: 3})

		// Its processes can be raised now, its stored spec cannot: that is tried again until it can.
		b.kernel.Refuse = nil
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1, Failed: 4})
		expectWords(t, b.log.String(), 1, "raised, but later execs into it are not: containerd did not answer")
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1, Failed: 5})
		b.specs.err = nil
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1, Failed: 5})
		if limit, known, err := spec.Memlock([]byte(b.specs.texts["low"])); err != nil || !known || limit.Soft != unlimited {
			t.Errorf("its stored spec is %s", b.specs.texts["low"])
		}
		if text := b.passes(1); text != "" {
			t.Errorf("the log goes on: %s", text)
		}
	})
}

func TestWithoutStoredSpecsLaterExecsStayLow(t *testing.T) {
	onBench(t, "repair: {mode: fix}", processes{"low": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("low", verbs)}, false)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1})
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1})
		expectWords(t, b.log.String(), 1,
			"later execs into it are not, since this runtime stores no spec that can be changed")
		if b.specs.reads > 0 {
			t.Error("stored specs were read")
		}
		// A later policy gives more: what a pass has raised it to is not what its program has lowered it to.
		b.use("{memlock: 1Gi, repair: {mode: fix}}")
		b.Listed([]Container{container("more", verbs)}, false)
		b.kernel.Run(limitstest.ID("more"), low)
		b.kernel.Change(func() {
			for _, p := range b.kernel.Table {
				p.Limit.Hard = unlimited
			}
		})
		b.record.containers[limitstest.ID("more")].Memlock = both(low)
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 2})
		b.use("{memlock: 2Gi, repair: {mode: fix}}")
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 3})
		b.expectSoft("more", 2<<30)
	})
}

// Where processes cannot be seen, the stored spec tells, else what the runtime has reported, else nobody.
func TestHiddenProcesses(t *testing.T) {
	reported := func(name string, soft spec.Limit) Container {
		c := container(name, verbs)
		c.Memlock = both(soft)
		return c
	}
	all := []Container{reported("low", low), reported("good", unlimited),
		container("unknown", verbs), container("unrelated")}
	onBench(t, "repair: {mode: fix}", nil, func(t *testing.T, b *bench) {
		b.kernel.Hidden = true
		b.Listed(all, false)
		want := Stats{Memlock: map[Verdict]int{Sufficient: 1, Below: 1, Unknown: 1}}
		b.expect(want)
		b.expect(want)
		expectWords(t, b.log.String(), 1,
			`msg="below policy: recreate the pod, or run rdma-spec repair on the node" container=main memlock=8Mi pod=default/pod-low`)
		expectWords(t, b.log.String(), 1,
			"the memlock of RDMA containers that run cannot be read: the processes of other containers are not visible here")
		// Nobody would ever say that this one is gone.
		b.Created(reported("created", unlimited))
		b.expect(want)
		b.expectRecorded("good low unknown unrelated")
	})
	onBench(t, "{}", nil, func(t *testing.T, b *bench) {
		b.kernel.Hidden = true
		b.specs.texts = map[string]string{
			"low":     `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`,
			"unknown": `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]}}`,
			"created": `{}`,
		}
		b.Listed(all, true)
		b.Created(container("created", verbs))
		b.Created(container("plain"))
		b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1, Below: 1, Unknown: 1}, WithoutIPCLock: 0})
		expectWords(t, b.log.String(), 1, `memlock=1 pod=default/pod-unknown`)
		b.expectRecorded("created low unknown unrelated") // the runtime says that good is gone
	})
}

func TestWhoIsGoneIsForgotten(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("a", verbs), container("b", verbs), container("plain")}, true)
		b.passes(1)
		b.expectRecorded("a b plain")
		time.Sleep(forgetAfter + time.Second)
		b.Created(container("c", verbs))
		b.passes(1)
		b.expectRecorded("a c")
		b.kernel.Run(limitstest.ID("a"))
		b.passes(2)
		b.expectRecorded("c")
		b.Listed(nil, true)
		if got := b.recorded(); got != "" || b.record.bytes != 0 {
			t.Errorf("recorded: %q with %d bytes, and the runtime has none", got, b.record.bytes)
		}
	})
}

// A node whose containers the policy gives nothing is not read in each pass; those that are gone are forgotten all the
// same.
func TestPlainContainersAreForgotten(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("a"), container("b")}, true)
		b.passes(1)
		asked := b.kernel.Asked()
		time.Sleep(time.Minute)
		b.passes(10)
		if n := b.kernel.Asked() - asked; n > 10 { // whether processes can be seen
			t.Errorf("the kernel was asked %d times in 10 passes", n)
		}
		time.Sleep(forgetAfter)
		b.passes(1)
		b.expectRecorded("a")
	})
}

func TestManyBelowPolicyAreFewLines(t *testing.T) {
	onBench(t, "{}", nil, func(t *testing.T, b *bench) {
		var all []Container
		for i := range 70 {
			name := fmt.Sprintf("low-%d", i)
			b.kernel.Run(limitstest.ID(name), low)
			all = append(all, container(name, verbs))
		}
		b.Listed(all, true)
		b.expect(Stats{Memlock: map[Verdict]int{Below: 70}})
		expectWords(t, b.log.String(), linesMost, "below policy")
		expectWords(t, b.log.String(), 1, "50 more containers have similar problems")
	})
}
