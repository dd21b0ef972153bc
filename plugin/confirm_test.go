// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/storedspectest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
)

// expectGrants demands that so many grants have these results, and no others; "" is none.
func (p *Plugin) expectGrants(t *testing.T, results ...string) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	for _, result := range results {
		if result != "" {
			want[result]++
		}
	}
	for _, result := range []string{grantConfirmed, grantRaised, grantLate, grantRefusedLate, grantUnconfirmed,
		grantAnswered} {
		if n := testutil.ToFloat64(p.metrics.grants.WithLabelValues(result)); n > 0 {
			got[result] = int(n)
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
}

// cdiName is of a device that is an HCA.
const cdiName = "example.com/net-rdma=mlx5_0"

// expectLine demands that the log has one line about a container of the pod, with these words; none where there are no
// words.
func (p *running) expectLine(t *testing.T, words ...string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, "pod=ml/train-0") {
			lines = append(lines, line)
		}
	}
	if len(lines) != min(1, len(words)) {
		t.Fatalf("%d lines:\n%s", len(lines), p.log)
	}
	for _, want := range words {
		if !strings.Contains(lines[0], want) {
			t.Errorf("the log does not say %q: %s", want, lines[0])
		}
	}
	if left := p.confirmer.pending.all(); len(left) > 0 {
		t.Errorf("still pending: %v", left)
	}
}

// The line about a container says what the container has, once it is known: the event and the stored spec show it.
func TestConfirm(t *testing.T) {
	const before, mebibyte = 8 << 20, 1 << 20
	// stored is what the container has in the end. IPC_LOCK counts sets.
	type stored struct {
		Memlock spec.Limit
		IPCLock int
	}
	unlimited := stored{spec.Unlimited, 5}
	for _, test := range []struct {
		name, policy string
		annotation   string
		device       string               // that its pod's author names by CDI
		plain        bool                 // it holds no device when it is created
		other        *another             // index 10
		privileged   bool                 // all devices of the host are allowed
		silent       bool                 // the runtime reports no rlimits
		unset        bool                 // nothing has set a memlock
		changes      func(*api.Container) // something else changes what is stored
		want         stored
		gets         int      // of the stored spec
		result       string   // "": nothing is granted
		says         []string // of the one line about the container; nil: there is none
		fails        bool     // the creation
	}{
		{name: "granted", want: unlimited, gets: 1, result: grantConfirmed,
			says: []string{"level=info", "msg=adjusted", "memlock=unlimited", "ipc_lock=true", "signal=device", "rule=default"}},
		{name: "memlock alone is in the event", policy: "memlock: 1Gi", want: stored{1 << 30, 0}, result: grantConfirmed,
			says: []string{"msg=adjusted", "memlock=1Gi", "ipc_lock=false"}},
		{name: "the capability in any case", policy: "ipcLock: always", want: unlimited, gets: 1, result: grantConfirmed,
			says: []string{"ipc_lock=true"}},
		{name: "the capability beside a limit", policy: "{memlock: 1Gi, ipcLock: always}", want: stored{1 << 30, 5}, gets: 1,
			result: grantConfirmed, says: []string{"memlock=1Gi", "ipc_lock=true"}},
		{name: "its author wants no capability", annotation: "{ipcLock: false}", want: stored{spec.Unlimited, 0},
			result: grantConfirmed, says: []string{"ipc_lock=false"}},
		{name: "the policy gives no capability", policy: "ipcLock: false", want: stored{spec.Unlimited, 0},
			result: grantConfirmed, says: []string{"ipc_lock=false"}},
		{name: "opted out", annotation: "false", want: stored{before, 0}, says: []string{"left alone: opted out"}},
		{name: "refused", annotation: "true", plain: true, fails: true, says: []string{"level=error", "refused"}},
		{name: "memlock alone is read before containerd 2.3", policy: "memlock: 1Gi", silent: true,
			want: stored{1 << 30, 0}, gets: 1, result: grantConfirmed, says: []string{"msg=adjusted", "memlock=1Gi"}},
		{name: "somebody takes memlock back", want: unlimited, gets: 1, result: grantRaised,
			changes: func(ctr *api.Container) { ctr.Rlimits = nil },
			says:    []string{"msg=adjusted", "memlock=unlimited", "from=8Mi"}},
		{name: "devices are lost", policy: "inject: {namespaces: [ml]}", annotation: "true", plain: true,
			changes: func(ctr *api.Container) { ctr.Linux.Devices = ctr.Linux.Devices[1:] },
			want:    unlimited, gets: 1, result: grantUnconfirmed,
			says: []string{"level=warning", "not confirmed", "the container lacks uverbs"}},
		{name: "a device comes late", plain: true, other: &another{cdi: cdiName}, want: unlimited, gets: 1, result: grantLate,
			says: []string{"level=info", "adjusted", "CDI", "memlock=unlimited", "from=8Mi", "signal=device"}},
		{name: "a device comes late with a memlock", plain: true, other: &another{cdi: cdiName, memlock: mebibyte},
			want: unlimited, gets: 1, result: grantLate, says: []string{"adjusted", "memlock=unlimited", "from=1Mi"}},
		{name: "a device comes late to a finite policy", policy: "memlock: 1Gi", plain: true, other: &another{cdi: cdiName},
			want: stored{1 << 30, 0}, gets: 1, result: grantLate, says: []string{"adjusted", "memlock=1Gi", "ipc_lock=false"}},
		{name: "a device comes late where nothing sets memlock", plain: true, other: &another{cdi: cdiName}, unset: true,
			want: unlimited, gets: 1, result: grantLate, says: []string{"adjusted", `(mlx5_0)" ipc_lock=true`}},
		{name: "another device comes late", other: &another{cdi: cdiName}, want: unlimited, gets: 1, result: grantConfirmed,
			says: []string{"msg=adjusted"}},
		{name: "late, and opted out", annotation: "false", plain: true, other: &another{cdi: cdiName},
			want: stored{before, 0}, says: []string{"level=info", "left alone: opted out"}},
		{name: "late, and refused", policy: "memlock: memory-limit", plain: true, other: &another{cdi: cdiName},
			want: stored{before, 0}, result: grantRefusedLate, says: []string{"level=error", "a container that the " +
				"policy refuses is running", "reason=memory-limit"}},
		{name: "late, and named by the pod's author", plain: true, other: &another{cdi: cdiName}, device: cdiName,
			want: stored{before, 0}, says: []string{"level=info", "left alone", "nvidia.cdi.k8s.io/pod"}},
		{name: "late, and privileged", plain: true, other: &another{cdi: cdiName}, privileged: true, want: stored{before, 0}},
		{name: "plain", plain: true, want: stored{before, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			root, server := hcatest.V100(t), storedspectest.NewServer(t)
			specs := storedspec.New(storedspec.Options{Address: server.Socket})
			t.Cleanup(specs.Close)
			runtime, p := registered(t, Options{Policy: mustPolicy(t, test.policy+" # of the test"), StoredSpecs: specs,
				Inventory: inventoryOf(t, root), Limits: limits.On(limitstest.NewKernel(nil))})
			if test.other != nil {
				test.other.start(t, runtime, "10")
			}
			holder := verbsContainer(t, root)
			verbs := holder.Linux.Devices
			if test.plain {
				holder.Linux.Devices = nil
			}
			if test.privileged {
				holder.Linux.Resources = &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
			}
			runtime.Stores(func(ctr *api.Container, a *api.ContainerAdjustment) {
				if len(a.GetCDIDevices()) > 0 {
					ctr.Linux.Devices = verbs
				}
				if test.changes != nil {
					test.changes(ctr)
				}
				text, err := spec.WithoutRlimit(storedspectest.TrainingSpec(), spec.RlimitMemlock)
				if err == nil && !test.unset {
					reported, _ := memlockOf(ctr.GetRlimits())
					text, err = spec.Grant{Memlock: cmp.Or(reported.Soft, before)}.Apply(text, spec.AllSets)
				}
				if err != nil {
					t.Error(err)
				}
				server.Put("k8s.io", ctr.Id, text)
				if test.silent {
					ctr.Rlimits = nil
				}
			})
			pod := podIn("ml", test.annotation)
			if test.device != "" {
				pod.Annotations = map[string]string{"nvidia.cdi.k8s.io/pod": test.device}
			}
			if _, err := runtime.Create(t.Context(), pod, holder); (err != nil) != test.fails {
				t.Fatal(err)
			}
			var got stored
			if text := server.Spec("k8s.io", holder.Id); text != nil {
				has, _, err := spec.Memlock(text)
				must.Succeed(t, err)
				got = stored{has.Soft, strings.Count(string(text), "CAP_IPC_LOCK")}
			}
			if got != test.want || server.Gets(holder.Id) != test.gets {
				t.Errorf("stored are %+v after %d reads, want %+v after %d", got, server.Gets(holder.Id), test.want, test.gets)
			}
			p.expectGrants(t, test.result)
			p.expectLine(t, test.says...)
		})
	}
}

// On CRI-O, which stores no spec that can be read, the first process shows what its container got: it exists by then.
// Where no process can be seen, the line says what was answered.
func TestConfirm_CRIO(t *testing.T) {
	for name, test := range map[string]struct {
		has    []spec.Limit // of its processes
		late   bool         // its device comes after the answer
		hidden bool         // no process of a container can be seen
		// the process ID of the event is another container's
		foreign bool
		unnamed bool // the event has no process ID, as CRI-O 1.34's
		result  string
		says    []string
	}{
		"granted": {has: []spec.Limit{spec.Unlimited}, result: grantConfirmed,
			says: []string{"level=info", "msg=adjusted", "memlock=unlimited"}},
		"something else took it back": {has: []spec.Limit{8 << 20}, result: grantUnconfirmed,
			says: []string{"level=warning", "not confirmed", "the container's memlock is 8Mi", "rdma-spec repair"}},
		"the event has no process ID": {has: []spec.Limit{spec.Unlimited}, unnamed: true, result: grantConfirmed,
			says: []string{"level=info", "msg=adjusted", "memlock=unlimited"}},
		"no process yet": {result: grantAnswered, says: []string{"msg=answered", "memlock=unlimited"}},
		"another container's process": {has: []spec.Limit{spec.Unlimited}, foreign: true, result: grantAnswered,
			says: []string{"msg=answered", "memlock=unlimited"}},
		"a device comes late": {has: []spec.Limit{8 << 20}, late: true, result: grantUnconfirmed,
			says: []string{"level=warning", "the container's memlock is 8Mi"}},
		"a device comes late to one that has enough": {has: []spec.Limit{spec.Unlimited}, late: true, result: grantLate,
			says: []string{"level=info", "adjusted", "CDI", "memlock=unlimited"}},
		"no process can be seen": {has: []spec.Limit{spec.Unlimited}, hidden: true, result: grantAnswered,
			says: []string{"msg=answered", "memlock=unlimited"}},
	} {
		t.Run(name, func(t *testing.T) {
			root, kernel := hcatest.V100(t), limitstest.NewKernel(nil)
			kernel.Hidden = test.hidden
			runtime := nritest.New(t, "cri-o", "1.34.2")
			runtime.Start(t)
			p := registeredWith(t, runtime, Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root),
				Limits: limits.On(kernel)})
			holder := verbsContainer(t, root)
			holder.Id = limitstest.ID("main")
			verbs := holder.Linux.Devices
			if test.late {
				holder.Linux.Devices = nil
			}
			runtime.Stores(func(ctr *api.Container, _ *api.ContainerAdjustment) {
				ctr.Linux.Devices = verbs
				if test.has == nil {
					return
				}
				id := ctr.Id
				if test.foreign {
					id = limitstest.ID("another")
				}
				first := kernel.Run(id, test.has...)
				if !test.unnamed {
					ctr.Pid = uint32(first)
				}
			})
			if _, err := runtime.Create(t.Context(), pod, holder); err != nil {
				t.Fatal(err)
			}
			p.expectGrants(t, test.result)
			p.expectLine(t, test.says...)
		})
	}
}

// TestOutcomeOf compares what was found of a container with its grant, before anything is counted or logged.
func TestOutcomeOf(t *testing.T) {
	const low, high = spec.Limit(8 << 20), spec.Limit(1 << 30)
	both := func(l spec.Limit) spec.Rlimit { return spec.Rlimit{Soft: l, Hard: l} }
	device := firstVerbs(t, hcatest.V100(t))
	holder := policy.Container{Devices: []policy.Device{deviceOf(device)}}
	for name, test := range map[string]struct {
		container policy.Container
		grant     spec.Grant
		found     storedspec.Found
		want      outcome
	}{
		"it has all": {holder, spec.Grant{Memlock: high, Devices: []hca.Device{device}},
			storedspec.Found{Memlock: both(high), IPCLock: true}, outcome{memlock: high, ipcLock: true}},
		"memlock was written": {holder, spec.Grant{Memlock: high}, storedspec.Found{Memlock: both(low), Wrote: true},
			outcome{memlock: high, before: low, raised: true}},
		"nothing had set memlock": {holder, spec.Grant{Memlock: high}, storedspec.Found{Wrote: true},
			outcome{memlock: high, raised: true}},
		"only the capability was written": {holder, spec.Grant{Memlock: high, IPCLock: spec.IPCLockYes},
			storedspec.Found{Memlock: both(high), IPCLock: true, Wrote: true}, outcome{memlock: high, ipcLock: true}},
		"memlock is low, and cannot be written": {holder, spec.Grant{Memlock: high}, storedspec.Found{Memlock: both(low)},
			outcome{memlock: low, raised: true, lacks: spec.Grant{Memlock: high}}},
		"a device is gone": {policy.Container{}, spec.Grant{Devices: []hca.Device{device}},
			storedspec.Found{Memlock: both(low)}, outcome{memlock: low, lacks: spec.Grant{Devices: []hca.Device{device}}}},
		"memlock as the event has it": {policy.Container{Memlock: both(low)}, spec.Grant{IPCLock: spec.IPCLockYes},
			storedspec.Found{IPCLock: true, Wrote: true}, outcome{memlock: low, ipcLock: true}},
	} {
		test.want.granted = test.grant
		got := outcomeOf(test.container, test.grant, test.found)
		if diff := gocmp.Diff(test.want, got, gocmp.AllowUnexported(outcome{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// someSpecs are the stored specs of containers that run, by ID.
type someSpecs struct {
	texts map[string]string
	reads int
}

func (s *someSpecs) Read(_ context.Context, container string) ([]byte, error) {
	s.reads++
	if text, found := s.texts[container]; found {
		return []byte(text), nil
	}
	return nil, storedspec.ErrNotFound
}

// What PostCreateContainer does not confirm within some ten seconds is given up, once the container exists: another
// plugin's error hides it. One that is still being created, or never will be, is not.
func TestConfirmer_ExpireOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &output.Buffer{}
		logger := quiet()
		logger.SetOutput(log)
		specs := &someSpecs{texts: map[string]string{"hidden": ""}}
		p := unregistered(Options{Log: logger, StoredSpecs: unusedSpecs{}, RunningSpecs: specs})
		p.keepsSpecs.Store(true)
		for _, id := range []string{"hidden", "slow"} {
			p.confirmer.pending.add(id, newPendingGrant(policy.Container{Namespace: "ml", Pod: "train-0", Name: id},
				policy.Decision{Grant: &spec.Grant{Memlock: spec.Unlimited}}))
		}
		missing := map[string]bool{}
		p.confirmer.expireOverdue(t.Context(), missing)
		p.expectGrants(t)
		time.Sleep(confirmedWithin)
		for range 10 {
			p.confirmer.expireOverdue(t.Context(), missing)
		}
		p.expectGrants(t, grantUnconfirmed)
		if specs.reads != 2 {
			t.Errorf("%d stored specs were read for two containers, of which one was never created", specs.reads)
		}
		if _, pending := p.confirmer.pending.take("slow"); !pending || strings.Count(log.String(), "not confirmed") != 1 ||
			!strings.Contains(log.String(), "container=hidden") {
			t.Errorf("still pending: %t; the log says:\n%s", pending, log)
		}
		if p.confirmer.expireOverdue(t.Context(), missing); len(missing) > 0 {
			t.Errorf("missing, and nothing is pending: %v", missing)
		}
	})
}

// Without containerd's socket the line says answered, and why is said once.
func TestConfirm_NoSocket(t *testing.T) {
	specs := &recordedSpecs{fails: fmt.Errorf("%w at /nowhere", storedspec.ErrNoSocket)}
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), StoredSpecs: specs})
	for range 2 {
		if _, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root)); err != nil {
			t.Fatal(err)
		}
	}
	p.expectGrants(t, grantAnswered, grantAnswered)
	log := p.log.String()
	if strings.Count(log, "msg=answered") != 2 || strings.Count(log, "cannot confirm grants") != 1 ||
		strings.Contains(log, "ipc_lock=") || strings.Contains(log, "msg=adjusted") {
		t.Errorf("the log says:\n%s", log)
	}
}
