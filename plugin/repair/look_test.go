// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

func sleepUntilStarted() { time.Sleep(startsWithin) }
func sleepAMoment()      { time.Sleep(10 * time.Millisecond) }
func sleepAPass()        { time.Sleep(30 * time.Second); synctest.Wait() }

// A later policy finds containers that an earlier one left alone.
func TestLaterPolicyFindsContainers(t *testing.T) {
	opted := map[string]string{policy.AnnotationKey: "true"}
	for name, test := range map[string]struct {
		before, after string
		annotations   map[string]string
	}{
		"optIn.devices": {before: "optIn: {devices: false}", after: "{}"},
		"optIn.namespaces": {before: "optIn: {devices: false}",
			after: "optIn: {devices: false, namespaces: [default]}", annotations: opted},
		"optIn.resources": {before: "optIn: {devices: false}", after: "optIn: {devices: false, resources: [rdma/*]}"},
		"another resource": {before: "optIn: {devices: false, resources: [other/*]}",
			after: "optIn: {devices: false, resources: [rdma/*]}"},
		"a rule by namespace": {before: "memlock: 1Mi",
			after: "{memlock: 1Mi, rules: [{match: {namespaces: [default]}, memlock: 1Gi}]}"},
		"a rule by resource": {before: "optIn: {devices: false}",
			after: "{optIn: {devices: false}, rules: [{match: {resources: [rdma/*]}}]}"},
		"a rule less": {before: "rules: [{match: {namespaces: [default]}, memlock: unchanged, ipcLock: false}]",
			after: "{}"},
		"skipRuntimeHandlers": {before: "skipRuntimeHandlers: ['']", after: "{}"},
		"refused, and no more": {before: "optIn: {devices: false}",
			after: "inject: {namespaces: [default]}", annotations: opted},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, test.before, processes{"listed": {low}, "created": {low}}, func(t *testing.T, b *bench) {
				b.kubelet.names = map[string][]string{"pod-listed": {"rdma/hca"}, "pod-created": {"rdma/hca"}}
				listed, created := container("listed", verbs), container("created", verbs)
				listed.Annotations, created.Annotations = test.annotations, test.annotations
				b.Listed([]Container{listed}, true)
				b.Created(created)
				b.passes(1)
				sleepUntilStarted()
				b.passes(1)
				if s, _ := b.Stats(); s.Memlock[Below] != 0 {
					t.Errorf("before: %+v", s)
				}
				b.use(test.after)
				b.expect(Stats{Memlock: map[Verdict]int{Below: 2}})
			})
		})
	}
}

// The kubelet is asked once about a container that runs, and not at all about one that needs it not.
func TestRunningContainersByResource(t *testing.T) {
	onBench(t, "optIn: {resources: [rdma/*]}", processes{"by-device": {low}, "by-resource": {low},
		"unrelated": {low}, "init": {low}}, func(t *testing.T, b *bench) {
		b.kubelet.names = map[string][]string{"pod-by-resource": {"rdma/hca"}}
		b.kubelet.unlisted = map[string]bool{"pod-init": true}
		b.kubelet.down = true
		all := []Container{container("by-device", verbs), container("by-resource"), container("unrelated"), container("init"),
			container("not-started")}
		b.Listed(all, true)
		b.expect(Stats{Memlock: map[Verdict]int{Below: 1}})
		b.kubelet.down = false
		b.kubelet.asked = nil
		b.expect(Stats{Memlock: map[Verdict]int{Below: 2}})
		b.passes(3)
		b.Listed(all, true) // the runtime has restarted
		b.expect(Stats{Memlock: map[Verdict]int{Below: 2}})
		if got := fmt.Sprint(b.kubelet.asked); got != "map[pod-by-resource:1 pod-init:1 pod-unrelated:1]" {
			t.Errorf("asked about %s, want once about each that runs but by-device", got)
		}
	})
}

// A pass asks a bounded number of questions, and the next one soon goes on where it stopped, also where some are never
// answered.
func TestManyQuestionsToTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = kubeletBurst + int(kubeletWithin/kubeletPause)
		const count = 5 * each / 2
		b := newBench(t, "{repair: {every: 1h}, optIn: {resources: [rdma/*]}}", nil)
		b.kubelet.names = map[string][]string{}
		var all []Container
		for i := range count {
			name := fmt.Sprintf("worker-%03d", i)
			b.kernel.Run(limitstest.ID(name), unlimited)
			b.kubelet.names["pod-"+name] = []string{"rdma/hca"}
			all = append(all, container(name))
		}
		b.Listed(all, true)
		start := time.Now()
		for pass := range 3 {
			took := time.Now()
			next := b.pass(t.Context())
			if s, _ := b.Stats(); s.Memlock[Sufficient] != min(count, (pass+1)*each) {
				t.Errorf("pass %d: %v", pass, s.Memlock)
			}
			if d := time.Since(took); d > kubeletWithin {
				t.Errorf("pass %d took %s", pass, d)
			}
			if pass == 2 {
				continue
			}
			if next > time.Second {
				t.Errorf("the pass after %d comes in %s", pass, next)
			}
		}
		if took := time.Since(start); took < time.Duration(count-3*kubeletBurst)*kubeletPause {
			t.Errorf("%d questions within %s: too many for the kubelet", count, took)
		}
		b.kubelet.down = true
		b.Listed(append(all, container("z")), true)
		b.kernel.Run(limitstest.ID("z"), unlimited)
		time.Sleep(startsWithin)
		if next := b.pass(t.Context()); next != time.Hour {
			t.Errorf("the kubelet is down, and the next pass comes in %s", next)
		}
	})
}

// Containers about which the kubelet never answers do not keep it from being asked about the others.
func TestQuestionsThatAreNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unknown = 200
		b := newBench(t, "optIn: {resources: [rdma/*]}", processes{"z": {low}})
		b.kubelet.names = map[string][]string{"pod-z": {"rdma/hca"}}
		b.kubelet.unknown = map[string]bool{}
		var all []Container
		for i := range unknown {
			name := fmt.Sprintf("a-%03d", i)
			b.kernel.Run(limitstest.ID(name), low)
			b.kubelet.unknown["pod-"+name] = true
			all = append(all, container(name))
		}
		b.Listed(append(all, container("z")), true)
		b.passes(2)
		if s, _ := b.Stats(); s.Memlock[Below] != 1 {
			t.Errorf("%+v, and the kubelet was asked about %d pods", s, len(b.kubelet.asked))
		}
	})
}

// The end of the program does not wait for the kubelet: at most for the answer that is under way.
func TestEndDuringQuestions(t *testing.T) {
	onBench(t, "optIn: {resources: [rdma/*]}", nil, func(t *testing.T, b *bench) {
		var all []Container
		for i := range kubeletBurst {
			name := fmt.Sprintf("a-%d", i)
			b.kernel.Run(limitstest.ID(name), low)
			all = append(all, container(name))
		}
		b.Listed(all, true)
		ctx, end := context.WithCancel(t.Context())
		b.kubelet.before = end
		b.pass(ctx)
		if n := len(b.kubelet.asked); n != 1 {
			t.Errorf("the kubelet was asked about %d pods, want 1", n)
		}
	})
}

// A runtime puts the process of an exec into the container's cgroup a moment before it sets the limits.
func TestExecIsNotBelowPolicy(t *testing.T) {
	onBench(t, "repair: {mode: fix, every: 1s}", processes{"a": {unlimited}}, func(t *testing.T, b *bench) {
		b.specs.texts["a"] = `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`
		b.Listed([]Container{container("a", verbs)}, true)
		const execs = 1000
		exec := func(pid int) {
			process := limitstest.NewProcess(limitstest.ID("a"), low)
			b.kernel.Change(func() { b.kernel.Table[pid] = process })
			time.Sleep(3 * time.Second)
			b.kernel.Change(func() { process.Limit = both(unlimited) })
			time.Sleep(100 * time.Millisecond)
			b.kernel.Change(func() { delete(b.kernel.Table, pid) })
		}
		go b.Run(t.Context())
		for i := range execs { // so that some process is low at any time
			go exec(5000 + i)
			time.Sleep(100 * time.Millisecond)
			if s, ok := b.Stats(); ok && s.Memlock[Sufficient] != 1 {
				t.Fatalf("not sufficient: %v", s.Memlock)
			}
		}
		if s, _ := b.Stats(); s.Memlock[Sufficient] != 1 || s.Raised > 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(5 * time.Second) // the last exec
	})
}

// A container that is being started gets its limits a moment later, on a busy node after seconds. Passes come soon
// until then.
func TestContainerThatIsBeingStarted(t *testing.T) {
	for name, test := range map[string]struct {
		given spec.Limit // 0: nobody knows
		then  Verdict    // where its process is left with less
	}{
		"what was given is not known":  {0, Below},
		"its program keeps what it is": {unlimited, Lowered},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, "{}", processes{"a": {low}, "b": {low}}, func(t *testing.T, b *bench) {
				for _, name := range []string{"a", "b"} {
					c := container(name, verbs)
					c.Memlock = both(test.given)
					b.Created(c)
				}
				for range startsWithin / soon {
					if next := b.pass(t.Context()); next != soon {
						t.Errorf("the next pass is due after %s, want %s", next, soon)
					}
					if s, _ := b.Stats(); s.Memlock[Sufficient] != 2 {
						t.Errorf("%+v", s)
					}
					time.Sleep(soon)
				}
				b.kernel.Run(limitstest.ID("a"), unlimited)
				if next := b.pass(t.Context()); next != 30*time.Second {
					t.Errorf("the next pass is due after %s", next)
				}
				b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1, test.then: 1}})
				expectWords(t, b.log.String(), 1, "pod=default/pod-b")
			})
		})
	}
}

// The log says what a container has become, also where it said something else of it before.
func TestVerdictsChange(t *testing.T) {
	onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
		b.Listed([]Container{container("a", verbs)}, false)
		for _, step := range []struct {
			limit spec.Rlimit
			words string // "": nothing
		}{
			{spec.Rlimit{Soft: low, Hard: unlimited}, "its program has lowered its own memlock"},
			{both(low), "below policy"},
			{both(low), ""},
			{spec.Rlimit{Soft: low, Hard: unlimited}, "its program has lowered its own memlock"},
			{both(unlimited), ""},
			{both(low), "below policy"},
		} {
			b.kernel.Table[1000].Limit = step.limit
			if text := b.passes(1); (text == "") != (step.words == "") || !strings.Contains(text, step.words) {
				t.Errorf("%v: the log says %q, want %q", step.limit, text, step.words)
			}
		}
	})
}

// A program may lower its own soft limit. Repair recognises that, and leaves it as it is.
func TestLoweredByTheProgram(t *testing.T) {
	softLow := spec.Rlimit{Soft: low, Hard: unlimited}
	enough := `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`
	for name, test := range map[string]struct {
		stored  string // "": the runtime stores none
		given   spec.Limit
		verdict Verdict
	}{
		"its spec gives enough":       {enough, 0, Lowered},
		"its creation gave enough":    {"", unlimited, Lowered},
		"nobody knows what was given": {"", 0, Lowered},
		"its spec sets none":          {"{}", 0, Below},
		"its creation gave less":      {"", low, Below},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, "{}", processes{"a": {low}}, func(t *testing.T, b *bench) {
				b.specs.texts["a"] = test.stored
				b.kernel.Table[1000].Limit = softLow
				c := container("a", verbs)
				c.Memlock = both(test.given)
				b.Listed([]Container{c}, test.stored != "")
				b.expect(Stats{Memlock: map[Verdict]int{test.verdict: 1}})
				b.passes(1)
				b.use("repair: {mode: fix}")
				raised := uint64(0)
				if test.verdict == Below {
					raised = 1
					b.expect(Stats{Memlock: map[Verdict]int{Sufficient: 1}, Raised: 1})
					b.kernel.Change(func() { b.kernel.Table[1000].Limit = softLow }) // the program lowers it
				}
				b.log.Reset()
				for range 3 {
					b.expect(Stats{Memlock: map[Verdict]int{Lowered: 1}, Raised: raised})
				}
				b.expectSoft("a", low)
				if test.verdict == Below {
					expectWords(t, b.log.String(), 1, "its program has lowered its own memlock: left alone")
				}
			})
		})
	}
}
