// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/repair"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

// existing is a container that a runtime has: in a sandbox of its own, with the devices that were given. The name is
// that of its ID.
func existing(name string, devices ...*api.LinuxDevice) *api.Container {
	return &api.Container{Id: limitstest.ID(name), PodSandboxId: "pod-" + name, Name: "main",
		Linux: &api.LinuxContainer{Devices: devices}}
}

// limited is a container of which the runtime reports a memlock: if that is low, it counts at once, and otherwise once
// its processes have been low for a while.
func limited(ctr *api.Container, memlock spec.Limit) *api.Container {
	ctr.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: uint64(memlock), Hard: uint64(memlock)}}
	return ctr
}

// expectMemlock waits until repair has found so many containers.
func (p *running) expectMemlock(t *testing.T, want map[repair.Verdict]int) {
	t.Helper()
	await.Success(t, await.Patience, "the containers that are wanted", func() error {
		got, _ := p.repair.Stats()
		if diff := cmp.Diff(want, got.Memlock, cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("memlock (-want +got):\n%s\nThe log says:\n%s", diff, p.log)
		}
		return nil
	})
}

// What the runtime lists and what it creates is compared with the policy that is in force.
func TestRunningContainersAreCompared(t *testing.T) {
	const low = spec.Limit(8 << 20)
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	table := limitstest.NewKernel(map[string][]spec.Limit{
		limitstest.ID("listed"): {low}, limitstest.ID("plain"): {low}, limitstest.ID("vm"): {low},
		limitstest.ID("created"): {spec.Unlimited}, limitstest.ID("injected"): {spec.Unlimited},
		limitstest.ID("later"): {spec.Unlimited}, limitstest.ID("refused"): {low},
	})
	nri := started(t, limited(existing("listed", verbs), low), limited(existing("plain"), low))
	p := run(t, Options{Socket: nri.Socket, Inventory: inventoryOf(t, root),
		Policy: mustPolicy(t, "inject: {namespaces: [asking]}"), Limits: limits.On(table)})
	p.expectMemlock(t, map[repair.Verdict]int{repair.Below: 1})
	for ctr, pod := range map[*api.Container]*api.PodSandbox{existing("created", verbs): pod,
		existing("injected"): in("asking", "true"), existing("later"): pod} {
		if _, err := nri.Create(t.Context(), pod, ctr); err != nil {
			t.Fatalf("%s: %v", ctr, err)
		}
	}
	if _, err := nri.Create(t.Context(), in("other", "true"), existing("refused")); err == nil {
		t.Fatal("it is not refused")
	}
	p.Use(mustPolicy(t, "{memlock: 1Gi, inject: {namespaces: [asking]}}"), "test", nil)
	p.expectMemlock(t, map[repair.Verdict]int{repair.Below: 1, repair.Sufficient: 2})
	p.Use(mustPolicy(t, "{memlock: 2Gi, optIn: {namespaces: [other], devices: false}}"), "test", nil)
	p.expectMemlock(t, nil)
	p.Use(mustPolicy(t, "inject: {namespaces: [asking]}"), "test", nil)
	p.expectMemlock(t, map[repair.Verdict]int{repair.Below: 1, repair.Sufficient: 2})
}

// Containers that the runtime lists are compared with the default policy where there is no configuration, and where
// that is bad, with the next one that is good.
func TestRunningContainersBeforeTheConfiguration(t *testing.T) {
	root := hcatest.V100(t)
	nri := started(t, limited(existing("a", verbsContainer(t, root).GetLinux().GetDevices()[0]), 1))
	table := limitstest.NewKernel(map[string][]spec.Limit{limitstest.ID("a"): {1}})
	for _, first := range []*policy.Policy{nil, policy.Missing(errors.New("a bad file"))} {
		p := registeredWith(t, nri, Options{Inventory: inventoryOf(t, root), Policy: first, Limits: limits.On(table)})
		if first != nil {
			if s, ok := p.repair.Stats(); ok {
				t.Errorf("without a configuration there are results: %+v", s)
			}
			p.Use(mustPolicy(t, "{}"), "test", nil)
		}
		p.expectMemlock(t, map[repair.Verdict]int{repair.Below: 1})
	}
}

// What was given to a container at its creation is the container's.
func TestRecorded(t *testing.T) {
	ctr := existing("a", &api.LinuxDevice{Path: "/dev/null", Type: "c", Major: 1, Minor: 3})
	ctr.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: 1 << 20, Hard: 1 << 40}}
	got := watched(ContainerOf(pod, ctr), ctr, spec.Grant{Memlock: 1 << 30,
		Devices: []hca.Device{{Path: "/dev/infiniband/rdma_cm", Number: hca.Number{Major: 10, Minor: 58}}}})
	want := repair.Container{
		Container: policy.Container{Namespace: "ml", Pod: "train-0", Name: "main", Devices: []policy.Device{
			{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}, {Path: "/dev/infiniband/rdma_cm",
				Type: "c", Major: 10, Minor: 58},
		}, Injected: true, Memlock: spec.Rlimit{Soft: 1 << 30, Hard: 1 << 40}},
		ID: limitstest.ID("a"), Sandbox: "pod-a",
	}
	expect.Equal(t, "recorded", want, got)
}

// Nothing is decided about a container whose pod is unknown.
func TestListedWithoutASandbox(t *testing.T) {
	got := listed([]*api.PodSandbox{{Id: "pod-a", Namespace: "ml"}}, []*api.Container{existing("a"), existing("b")})
	if len(got) != 1 || got[0].ID != limitstest.ID("a") || got[0].Namespace != "ml" {
		t.Errorf("watched: %+v", got)
	}
}

// Thousands of containers that the runtime has already, each of them an RDMA container, cost next to nothing.
func TestFiveThousandComparedContainers(t *testing.T) {
	root := hcatest.V100(t)
	verbs := verbsContainer(t, root).GetLinux().GetDevices()[0]
	processes := map[string][]spec.Limit{}
	var all []*api.Container
	for i := range fiveThousand() {
		name := fmt.Sprintf("compared-%d", i)
		processes[limitstest.ID(name)] = []spec.Limit{spec.Unlimited}
		ctr := existing(name, verbs)
		for j := range 30 {
			ctr.Env = append(ctr.Env, fmt.Sprintf("SERVICE_%d_PORT=tcp://10.0.0.%d:443", j, i%250))
		}
		all = append(all, ctr)
	}
	nri := nritest.New(t, "containerd", "v2.4.2")
	nri.SetExisting(all)
	before := measure(t)
	p := run(t, Options{Socket: nri.Socket, Inventory: inventoryOf(t, root), Policy: mustPolicy(t, "{}"),
		Limits: limits.On(limitstest.NewKernel(processes))})
	took := registrationCost(t, nri)
	p.expectMemlock(t, map[repair.Verdict]int{repair.Sufficient: fiveThousand()})
	grown := func() int64 { return int64(measure(t).heap) - int64(before.heap) }
	// a pass may be under way
	await.That(t, await.Patience, "memory is back to within 5 MB of before", func() bool { return grown() < 5<<20 })
	if took > 500*time.Millisecond && !race.Detector {
		t.Errorf("registration took %s of CPU time, want 500 ms at most: 100 µs a container", took)
	}
	runtime.KeepAlive(all)
	p.stop()
}
