// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/output"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// specWith is the text of a stored spec with this memlock.
func specWith(memlock uint64) string {
	return fmt.Sprintf(`{"ociVersion":"1.2.0","process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","soft":%d,"hard":%d}]}}`,
		memlock, memlock)
}

// specWithout is that of one that sets none.
const specWithout = `{"ociVersion":"1.2.0","process":{}}`

// looks gives what a plugin says when it registers with a runtime that has these containers: the number of its metric,
// or "unknown", and the log.
func looks(t *testing.T, runtime *nritest.Runtime, o Options) (below string, log *output.Buffer) {
	t.Helper()
	runtime.Start(t)
	o.Raise = "rdma-spec repair"
	p := registeredWith(t, runtime, o)
	await.That(t, await.Timeout, "looked", func() bool { return p.below.Load() != nil })
	if n, err := testutil.GatherAndCount(gathered(p), "nri_rdma_registered_below_policy"); err != nil || n != 1 {
		t.Errorf("%d metrics, %v", n, err)
	}
	return fmt.Sprint(*p.below.Load()), p.log
}

// TestLook: when it registers, the plugin counts the containers that hold a verbs device and have less than the policy
// gives, names the first few, and says what raises them.
func TestLook(t *testing.T) {
	root := hcatest.V100(t)
	kernel := limitstest.NewKernel(nil)
	texts := map[string]string{}
	var existing []*api.Container
	add := func(name string, change func(*api.Container)) {
		ctr := verbsContainer(t, root)
		ctr.Id = limitstest.ID(name)
		ctr.PodSandboxId = "pod"
		ctr.Name = name
		change(ctr)
		existing = append(existing, ctr)
	}
	reports := func(memlock uint64) func(*api.Container) {
		return func(c *api.Container) {
			c.Rlimits = []*api.POSIXRlimit{{Type: spec.RlimitMemlock, Soft: memlock, Hard: memlock}}
		}
	}
	stores := func(text string) func(*api.Container) {
		return func(c *api.Container) { texts[c.Id] = text }
	}
	runs := func(limit spec.Limit) func(*api.Container) {
		return func(c *api.Container) {
			texts[c.Id] = specWithout
			c.Pid = uint32(kernel.Run(c.Id, limit))
		}
	}
	add("enough-reported", reports(uint64(spec.Unlimited)))
	add("enough-stored", stores(specWith(uint64(spec.Unlimited))))
	add("enough-runs", runs(spec.Unlimited))
	add("ended", func(*api.Container) {})
	add("stopped", func(c *api.Container) {
		texts[c.Id] = specWith(1 << 16)
		c.State = api.ContainerState_CONTAINER_STOPPED
	})
	add("plain", func(c *api.Container) {
		texts[c.Id] = specWith(1 << 16)
		c.Linux.Devices = nil
	})
	add("raised-since", func(c *api.Container) { // the list is older than the stored spec
		reports(1 << 16)(c)
		texts[c.Id] = specWith(uint64(spec.Unlimited))
	})
	low := []string{"low-a", "low-b", "low-c", "low-d"}
	for _, name := range low[:3] {
		add(name, stores(specWith(1<<16)))
	}
	add(low[3], runs(8<<20))
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting(existing)
	below, log := looks(t, runtime, Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root),
		Limits: limits.On(kernel), StoredSpecs: unusedSpecs{}, RunningSpecs: &someSpecs{texts: texts}})
	if below != "4" || strings.Count(log.String(), "a lower memlock than the current policy grants") != 1 ||
		!strings.Contains(log.String(), "default/pod container low-c and 1 more) have a lower memlock ") ||
		!strings.Contains(log.String(), "to raise their memlock, run rdma-spec repair") {
		t.Errorf("%s below; the log says:\n%s", below, log)
	}
}

// failingSpecs are stored specs that cannot be read.
type failingSpecs struct{ reads int }

func (f *failingSpecs) Read(context.Context, string) ([]byte, error) {
	f.reads++
	return nil, errors.New("no answer")
}

// TestLook_Bounded: a look reads a bounded number of stored specs, and says that some containers are unknown.
func TestLook_Bounded(t *testing.T) {
	root := hcatest.V100(t)
	existing := make([]*api.Container, lookSpecsMost+50)
	for i := range existing {
		existing[i] = verbsContainer(t, root)
		existing[i].Id = limitstest.ID(fmt.Sprint(i))
	}
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting(existing)
	specs := &failingSpecs{}
	below, log := looks(t, runtime, Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root),
		StoredSpecs: unusedSpecs{}, RunningSpecs: specs})
	if below != "0" || specs.reads != lookSpecsMost || strings.Count(log.String(), "is unknown: to compare them "+
		"with the policy, run rdma-spec status") != 1 {
		t.Errorf("%s below after %d reads; the log says:\n%s", below, specs.reads, log)
	}
}

// TestLook_Unknown: where the kubelet would have to say which rule a container matches, it counts by the least that it
// may get.
func TestLook_Unknown(t *testing.T) {
	root := hcatest.V100(t)
	ctr := verbsContainer(t, root)
	ctr.Rlimits = []*api.POSIXRlimit{{Type: spec.RlimitMemlock, Soft: 1 << 30, Hard: 1 << 30}}
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting([]*api.Container{ctr})
	below, log := looks(t, runtime, Options{Inventory: inventoryOf(t, root),
		Policy: mustPolicy(t, "rules: [{match: {resources: [rdma/slow]}, memlock: 1Gi, ipcLock: false}]")})
	if below != "0" {
		t.Errorf("%s below; the log says:\n%s", below, log)
	}
}

// TestLook_HandedOver: a process that takes the connection over looks at nothing, and keeps the number.
func TestLook_HandedOver(t *testing.T) {
	dir, root := scratch.Dir(t), hcatest.V100(t)
	ctr := verbsContainer(t, root)
	ctr.Id = limitstest.ID("low")
	runtime := nritest.New(t, "containerd", "v2.4.2")
	runtime.SetExisting([]*api.Container{ctr})
	runtime.Start(t)
	specs := &someSpecs{texts: map[string]string{ctr.Id: specWith(1 << 16)}}
	o := Options{Handover: dir, Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root), StoredSpecs: unusedSpecs{},
		RunningSpecs: specs, Socket: runtime.Socket}
	first := registeredWith(t, runtime, o)
	await.That(t, await.Timeout, "looked", func() bool { return first.below.Load() != nil })
	second := run(t, o)
	await.That(t, await.Timeout, "ready to take over", func() bool { return notReady(second) == nil })
	first.stop()
	await.That(t, await.Timeout, "registered", second.Registered)
	if n := second.below.Load(); n == nil || *n != 1 || specs.reads != 1 {
		t.Errorf("%v below, after %d reads", n, specs.reads)
	}
}

// gathered are the metrics of a plugin.
func gathered(p *running) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.Collectors()...)
	return registry
}
