// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/spec"
)

// With no plugin there to adjust them, the validator refuses the containers that it would have adjusted, and no others.
// TestWalk compares its decisions with the plugin's.
func TestValidate_Alone(t *testing.T) {
	nri, p := registered(t, Options{Validate: true, Policy: mustPolicy(t, "inject: {namespaces: [ml]}")})
	holder := func(memlock uint64) *api.Container {
		ctr := verbsContainer(t, p.root)
		if memlock != 0 {
			ctr.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: memlock, Hard: memlock}}
		}
		return ctr
	}
	for _, test := range []struct {
		name string
		pod  *api.PodSandbox
		ctr  *api.Container
		want string // of the error; "" where it is created
	}{
		{"unrelated", podIn("web", ""), &api.Container{Id: "c", Name: "main"}, ""},
		{"a verbs device", podIn("web", ""), holder(0),
			"pod web/train-0, container main: the RDMA container (device: /dev/infiniband/uverbs0 (mlx5_0)) " +
				`would start without memlock unlimited, which rule "default" grants: check that nri-rdma is registered on this node`},
		{"a verbs device and too low a limit", podIn("web", ""), holder(1 << 23),
			"would start without memlock unlimited"},
		{"a verbs device and a limit that suffices", podIn("web", ""), holder(1<<64 - 1), ""},
		{"annotated", podIn("ml", "true"), &api.Container{Id: "c", Name: "main"},
			"would start without memlock unlimited and devices uverbs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := nri.Create(t.Context(), test.pod, test.ctr)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("the creation gives %v, want %q", err, test.want)
			}
		})
	}
}

// What the plugin has adjusted the validator has nothing to say about, as the runtime hands it over. TestWalk has other
// policies.
func TestValidate_BesidePlugin(t *testing.T) {
	const config = "{memlock: memory-limit, inject: {namespaces: [ml]}, rules: [{name: r, match: {namespaces: [ml]}, " +
		"inject: {names: [mlx5_*], always: true}}]}"
	nri, p := registered(t, Options{Policy: mustPolicy(t, config)})
	validator := registeredWith(t, nri, Options{Inventory: p.Inventory, Validate: true, Policy: mustPolicy(t, config)})
	limited := &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(1 << 30)}}
	holder := verbsContainer(t, p.root)
	holder.Linux.Resources = limited
	for _, annotation := range []string{"true", "{devices: [mlx5_0]}", "{devices: none}", "{memlock: 1Mi}"} {
		for _, ctr := range []*api.Container{holder, {Id: "bare", Name: "main",
			Linux: &api.LinuxContainer{Resources: limited}}} {
			if _, err := nri.Create(t.Context(), podIn("ml", annotation), ctr); err != nil {
				t.Errorf("%s, container %s: %v", annotation, ctr.GetId(), err)
			}
		}
	}
	if strings.Contains(validator.log.String(), "refused") {
		t.Errorf("the validator said:\n%s", validator.log)
	}
}

// A plugin that injects devices behind the plugin's back does not go past the validator.
func TestValidate_InjectedByOthers(t *testing.T) {
	nri, p := registered(t, Options{Policy: mustPolicy(t, "{}")})
	registeredWith(t, nri, Options{Inventory: p.Inventory, Policy: mustPolicy(t, "{}"), Validate: true})
	another{device: verbsContainer(t, p.root).GetLinux().GetDevices()[0]}.start(t, nri, "95")
	_, err := nri.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
	if err == nil || !strings.Contains(err.Error(), "would start without memlock unlimited") {
		t.Errorf("the creation gives %v, want it refused", err)
	}
}

// The plugin asks what the runtime at the other end of its connection can start, gives no more than that, and says so;
// the validator is content with it.
func TestStartable_RuntimeMayNotRaise(t *testing.T) {
	const most = 8 << 20
	var asked []int
	startable := func(runtime int) (spec.Limit, error) {
		asked = append(asked, runtime)
		return most, nil
	}
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Startable: startable})
	registeredWith(t, runtime, Options{Policy: mustPolicy(t, "{}"), Validate: true, Inventory: p.Inventory,
		Startable: func(int) (spec.Limit, error) { return most, nil }})
	got, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
	if err != nil || len(got.GetRlimits()) != 1 || got.GetRlimits()[0].GetHard() != most {
		t.Errorf("creation: %v, %v", got.GetRlimits(), err)
	}
	for _, want := range []string{"the runtime cannot raise limits", "memlock is lowered from unlimited to 8Mi"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, p.log)
		}
	}
	if _, err := runtime.Create(t.Context(), podIn("ml", "{memlock: 1Gi}"), verbsContainer(t, p.root)); err == nil ||
		!strings.Contains(err.Error(), "no container with a memlock above 8Mi can start") {
		t.Errorf("the annotation's own number: %v", err)
	}
	if len(asked) != 1 || asked[0] != os.Getpid() { // NRI's side runs in this process
		t.Errorf("asked about the processes %v, want %d", asked, os.Getpid())
	}
}
