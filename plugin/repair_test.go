// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/await"
)

const low = spec.Limit(8 << 20)

// existing is a container that a runtime has: in a sandbox of its own, with the devices that were given. The name is that of its ID.
func existing(name string, devices ...*api.LinuxDevice) *api.Container {
	return &api.Container{Id: limitstest.ID(name), PodSandboxId: "pod-" + name, Name: "main", Linux: &api.LinuxContainer{Devices: devices}}
}

// looking runs a plugin with repair among existing containers, and waits until it has looked at them.
func looking(t *testing.T, config string, o Options, containers ...*api.Container) (*nritest.Runtime, *running) {
	t.Helper()
	nri := nritest.New(t, "containerd", "v2.4.2")
	nri.SetExisting(containers)
	nri.Start(t)
	o.Socket, o.Policy = nri.Socket, mustPolicy(t, config)
	p := run(t, o)
	await.That(t, await.Patience, "looked at the containers", func() bool {
		_, ok := p.RepairStats()
		return ok && nri.Synchronised() == 1
	})
	return nri, p
}

func (p *running) expectStats(t *testing.T, want RepairStats) {
	t.Helper()
	await.Success(t, await.Patience, "the statistics that are wanted", func() error {
		got, _ := p.RepairStats()
		diff := cmp.Diff(want, got, cmpopts.IgnoreFields(RepairStats{}, "Looked"))
		if diff == "" {
			return nil
		}
		p.repair.lookAgain()
		return fmt.Errorf("statistics (-want +got):\n%s\nThe log says:\n%s", diff, p.log)
	})
}

// passes has some passes made.
func (p *running) passes(t *testing.T, n int) {
	t.Helper()
	for range n {
		before := mustStats(p).Looked
		p.repair.lookAgain()
		await.That(t, await.Patience, "another pass", func() bool { return mustStats(p).Looked.After(before) })
	}
}

func (p *running) expectLog(t *testing.T, times int, text string) {
	t.Helper()
	if got := strings.Count(p.log.String(), text); got != times {
		t.Errorf("the log says %q %d times, want %d:\n%s", text, got, times, p.log)
	}
}

func TestContainersBelowPolicyAreReported(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	disk := &api.LinuxDevice{Path: verbs.Path, Type: "b", Major: verbs.Major, Minor: verbs.Minor}
	table := node(map[string][]spec.Limit{
		"low": {low}, "child-low": {spec.Unlimited, low}, "good": {spec.Unlimited}, "unrelated": {low}, "disk": {low},
	})
	_, p := looking(t, "{}", Options{Root: root, Limits: limits.On(table)},
		existing("low", verbs), existing("child-low", verbs), existing("good", verbs), existing("unrelated"), existing("disk", disk), existing("ended", verbs))
	p.expectStats(t, RepairStats{RDMA: 3, Below: 2})
	p.passes(t, 3)
	p.expectStats(t, RepairStats{RDMA: 3, Below: 2})
	p.expectLog(t, 1, `pod=default/pod-low`)
	p.expectLog(t, 1, `pod=default/pod-child-low`)
	p.expectLog(t, 2, `msg="below policy: recreate the pod, set repair.mode: fix, or run rdma-spec repair" container=main memlock=8Mi`)
	if n := table.Sets(); n > 0 {
		t.Errorf("limits were set %d times", n)
	}
	table.Run(limitstest.ID("low"), spec.Unlimited)
	p.expectStats(t, RepairStats{RDMA: 3, Below: 1})
	table.Run(limitstest.ID("low"), low)
	p.expectStats(t, RepairStats{RDMA: 3, Below: 2})
	p.expectLog(t, 2, `pod=default/pod-low`)
}

func TestContainersBelowPolicyAreRaised(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"low": {low, spec.Unlimited, low}, "good": {spec.Unlimited}, "unrelated": {low}})
	specs := &storedSpecs{texts: map[string]string{"low": "{}", "good": "{}", "unrelated": "{}"}}
	_, p := looking(t, "{memlock: 16Gi, repair: {mode: fix}}", Options{Root: root, Limits: limits.On(table), RunningSpecs: specs},
		existing("low", verbs), existing("good", verbs), existing("unrelated"))
	p.expectStats(t, RepairStats{RDMA: 2, Repaired: 1})
	if diff := cmp.Diff([]spec.Limit{16 << 30, spec.Unlimited, 16 << 30}, table.Soft(limitstest.ID("low"))); diff != "" {
		t.Errorf("its limits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]spec.Limit{low}, table.Soft(limitstest.ID("unrelated"))); diff != "" {
		t.Errorf("limits of an unrelated container (-want +got):\n%s", diff)
	}
	want := map[string]string{"low": `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":17179869184,"soft":17179869184}]}}`, "good": "{}", "unrelated": "{}"}
	if diff := cmp.Diff(want, specs.texts); diff != "" {
		t.Errorf("stored specs (-want +got):\n%s", diff)
	}
	p.expectLog(t, 1, `msg="was below policy, and is raised" container=main memlock=8Mi pod=default/pod-low processes=2 rule=default wanted=16Gi`)

	// Another configuration gives more, to those that run as well.
	p.Use(mustPolicy(t, "{memlock: 32Gi, repair: {mode: fix}}"), "test", nil)
	p.expectStats(t, RepairStats{RDMA: 2, Repaired: 2})
	if diff := cmp.Diff([]spec.Limit{32 << 30, spec.Unlimited, 32 << 30}, table.Soft(limitstest.ID("low"))); diff != "" {
		t.Errorf("its limits (-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeRaised(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"low": {low}})
	table.Refuse = errors.New("setting it: this needs the capability SYS_RESOURCE")
	specs := &storedSpecs{texts: map[string]string{"low": "{}"}, err: errors.New("containerd did not answer")}
	_, p := looking(t, "repair: {mode: fix, every: 1s}", Options{Root: root, Limits: limits.On(table), RunningSpecs: specs}, existing("low", verbs))
	failed := func() bool { s, _ := p.RepairStats(); return s.Below == 1 && s.Failed >= 3 && s.Repaired == 0 }
	await.That(t, await.Patience, "tried again and again", func() bool { p.repair.lookAgain(); return failed() })
	p.expectLog(t, 1, "below policy, and cannot be raised: setting it: this needs the capability SYS_RESOURCE")

	// Its processes can be raised now, its stored spec cannot: that is tried again until it can.
	table.Change(func() { table.Refuse = nil })
	await.That(t, await.Patience, "raised", func() bool { p.repair.lookAgain(); s, _ := p.RepairStats(); return s.Repaired == 1 && s.Below == 0 })
	p.expectLog(t, 1, "raised, but later execs into it are not: containerd did not answer")
	specs.mu.Lock()
	specs.err = nil
	specs.mu.Unlock()
	await.That(t, await.Patience, "its spec is raised as well", func() bool {
		p.repair.lookAgain()
		limit, known, err := spec.Memlock(must2(specs.Read(t.Context(), limitstest.ID("low"))))
		return err == nil && known && limit.Soft == spec.Unlimited
	})
	p.expectStats(t, RepairStats{RDMA: 1, Repaired: 1, Failed: mustStats(p).Failed})
}

func must2(text []byte, err error) []byte {
	if err != nil {
		return []byte("{}")
	}
	return text
}

func mustStats(p *running) RepairStats {
	s, _ := p.RepairStats()
	return s
}

func TestWithoutStoredSpecsLaterExecsStayLow(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"low": {low}})
	_, p := looking(t, "repair: {mode: fix}", Options{Root: root, Limits: limits.On(table)}, existing("low", verbs))
	p.expectStats(t, RepairStats{RDMA: 1, Repaired: 1})
	p.expectLog(t, 1, "later execs into it are not, since this runtime keeps no spec that could be changed")
}

func TestSandboxedRuntimesAreLeftAlone(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(map[string][]spec.Limit{"low": {low}})
	p := New(Options{Root: root, Log: quiet(), Limits: limits.On(table), Policy: mustPolicy(t, "repair: {mode: fix}")})
	pods := []*api.PodSandbox{{Id: "pod-low", Name: "vm", Namespace: "default", RuntimeHandler: "kata-qemu"}}
	p.repair.registered(pods, []*api.Container{existing("low", verbs)}, true)
	p.repair.pass(t.Context())
	if s, ok := p.RepairStats(); !ok || s.RDMA != 0 || table.Sets() > 0 {
		t.Errorf("%+v, limits were set %d times", s, table.Sets())
	}
}

// Where processes cannot be seen, the stored spec tells, else what the runtime has reported, else nobody.
func TestHiddenProcesses(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	reported := func(id string, soft uint64) *api.Container {
		c := existing(id, verbs)
		c.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: soft, Hard: soft}}
		return c
	}
	table := &limitstest.Kernel{Hidden: true}
	all := []*api.Container{reported("low", uint64(low)), reported("good", uint64(spec.Unlimited)), existing("unknown", verbs), existing("unrelated")}
	nri, p := looking(t, "repair: {mode: fix}", Options{Root: root, Limits: limits.On(table)}, all...)
	p.expectStats(t, RepairStats{RDMA: 3, Below: 1, Unknown: 1})
	p.expectLog(t, 1, `msg="below policy: recreate the pod, or run rdma-spec repair on the node" container=main memlock=8Mi pod=default/pod-low`)
	p.expectLog(t, 1, "the memlock of RDMA containers that run cannot be read: the processes of other containers are not visible here")
	// Nobody would ever say that this one is gone.
	if _, err := nri.Create(t.Context(), pod, verbsContainer(t, root)); err != nil {
		t.Fatal(err)
	}
	p.expectStats(t, RepairStats{RDMA: 3, Below: 1, Unknown: 1})

	specs := &storedSpecs{texts: map[string]string{
		"low":     `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]}}`,
		"unknown": `{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]}}`,
	}}
	_, p = looking(t, "{}", Options{Root: root, Limits: limits.On(table), RunningSpecs: specs}, all...)
	p.expectStats(t, RepairStats{RDMA: 2, Below: 1})
	p.expectLog(t, 1, `memlock=1 pod=default/pod-unknown`)
}

func TestContainersThatAreCreatedAreWatched(t *testing.T) {
	root := hcatest.V100(t)
	table := node(nil)
	nri, p := looking(t, "memlock: 1Gi", Options{Root: root, Limits: limits.On(table)})
	ctr := verbsContainer(t, root)
	for i := range 3 {
		ctr.Id = limitstest.ID(fmt.Sprintf("created-%d", i))
		if _, err := nri.Create(t.Context(), pod, ctr); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			table.Run(ctr.GetId(), 1<<30)
		}
	}
	if _, err := nri.Create(t.Context(), pod, existing("unrelated")); err != nil {
		t.Fatal(err)
	}
	p.expectStats(t, RepairStats{RDMA: 2}) // one was created, and is not started
	p.Use(mustPolicy(t, "memlock: 2Gi"), "test", nil)
	p.expectStats(t, RepairStats{RDMA: 2, Below: 2})
	p.Use(mustPolicy(t, "repair: {mode: off}"), "test", nil)
	await.That(t, await.Patience, "off", func() bool { _, ok := p.RepairStats(); return !ok })
}

func TestWhoIsGoneIsForgotten(t *testing.T) {
	root := hcatest.V100(t)
	table := node(map[string][]spec.Limit{"a": {low}})
	p := New(Options{Root: root, Log: quiet(), Limits: limits.On(table), Policy: mustPolicy(t, "{}")})
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	long := time.Now().Add(-2 * startsWithin)
	p.repair.list(p.policy(), nil, []*api.Container{existing("a", verbs), existing("b", verbs)}, long)
	p.repair.add(containerOf(pod, existing("c", verbs)), existing("c", verbs), spec.Grant{Memlock: spec.Unlimited}, time.Now())
	p.repair.pass(t.Context())
	watching := func() string {
		var ids []string
		for _, w := range p.repair.all() {
			ids = append(ids, limitstest.Name(w.id))
		}
		return strings.Join(ids, " ")
	}
	if got := watching(); got != "a c" {
		t.Errorf("watching %q, want a, which runs, and c, which may start yet", got)
	}
	if len(p.repair.states) != 1 {
		t.Errorf("%d states", len(p.repair.states))
	}
	table.Run(limitstest.ID("a"))
	p.repair.pass(t.Context())
	p.repair.pass(t.Context())
	if got := watching(); got != "c" || len(p.repair.states) != 0 {
		t.Errorf("watching %q with %d states, want c", got, len(p.repair.states))
	}
	p.repair.registered(nil, nil, true)
	if got := watching(); got != "" {
		t.Errorf("watching %q, and the runtime has none", got)
	}
}

func TestManyBelowPolicyAreFewLines(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := node(nil)
	var all []*api.Container
	for i := range 70 {
		name := fmt.Sprintf("low-%d", i)
		table.Run(limitstest.ID(name), low)
		all = append(all, existing(name, verbs))
	}
	_, p := looking(t, "{}", Options{Root: root, Limits: limits.On(table)}, all...)
	p.expectStats(t, RepairStats{RDMA: 70, Below: 70})
	p.expectLog(t, repairLines, "below policy")
	p.expectLog(t, 1, "is true of 50 more containers")
}
