// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// With no plugin there to adjust them, the validator refuses the containers that it would have adjusted, and no others.
func TestValidatorAlone(t *testing.T) {
	nri := nritest.New(t, "containerd", "v2.4.2")
	nri.Start(t)
	p := run(t, Options{Socket: nri.Socket, Validate: true,
		Policy: mustPolicy(t,
			"{inject: {namespaces: [ml]}, rules: [{name: guests, match: {namespaces: [guest]}, memlock: memory-limit}]}")})
	await.That(t, await.Patience, "registered", func() bool { return nri.Synchronised() == 1 })

	holder := func(change func(*api.Container)) *api.Container {
		ctr := verbsContainer(t, p.root)
		change(ctr)
		return ctr
	}
	memlock := func(soft uint64) func(*api.Container) {
		return func(ctr *api.Container) {
			ctr.Rlimits = []*api.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Soft: soft, Hard: soft}}
		}
	}
	in := func(namespace, annotation string) *api.PodSandbox {
		sandbox := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: namespace}
		if annotation != "" {
			sandbox.Annotations = map[string]string{policy.AnnotationKey: annotation}
		}
		return sandbox
	}
	asIs := func(*api.Container) {}
	for _, test := range []struct {
		name string
		pod  *api.PodSandbox
		ctr  *api.Container
		want string // of the error; "" where it is created
	}{
		{"unrelated", in("web", ""), &api.Container{Id: "c", Name: "main"}, ""},
		{"a verbs device", in("web", ""), holder(asIs),
			"pod web/train-0, container main: the RDMA container (device: /dev/infiniband/uverbs0 (mlx5_0)) " +
				`would start without memlock unlimited, which rule "default" gives: see that nri-rdma is registered on this node`},
		{"a verbs device and too low a limit", in("web", ""), holder(memlock(1 << 23)),
			"would start without memlock unlimited"},
		{"a verbs device and a limit that suffices", in("web", ""), holder(memlock(1<<64 - 1)), ""},
		{"privileged", in("web", ""), holder(func(ctr *api.Container) {
			ctr.Linux.Resources = &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
		}), ""},
		{"a block device at the path of a verbs device", in("web", ""),
			holder(func(ctr *api.Container) { ctr.Linux.Devices[0].Type = "b" }), ""},
		{"opted out", in("web", "false"), holder(asIs), ""},
		{"annotated", in("ml", "true"), &api.Container{Id: "c", Name: "main"},
			"would start without memlock unlimited and devices uverbs"},
		{"annotated where it may not be", in("web", "true"), &api.Container{Id: "c", Name: "main"},
			`namespace "web" may not opt in by annotation`},
		{"without the memory limit that its rule wants", in("guest", ""), holder(asIs), `(rule "guests"), and it has none`},
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

// What the plugin has adjusted, whatever its policy gives, the validator has nothing to say about.
func TestValidatorBesideThePlugin(t *testing.T) {
	for name, config := range map[string]string{
		"defaults":     "inject: {namespaces: [ml]}",
		"finite":       "{memlock: 1Gi, inject: {namespaces: [ml]}}",
		"memory-limit": "{memlock: memory-limit, inject: {namespaces: [ml]}}",
		"a rule's HCAs": "{rules: [{name: r, match: {namespaces: [ml]}, inject: {names: [mlx5_*], always: true}}], inject: " +
			"{namespaces: [ml]}}",
	} {
		t.Run(name, func(t *testing.T) {
			nri, p := registered(t, Options{Policy: mustPolicy(t, config)})
			validator := run(t, Options{Socket: nri.Socket, Inventory: p.Inventory, Validate: true,
				Policy: mustPolicy(t, config)})
			await.That(t, await.Patience, "both are registered", func() bool { return nri.Synchronised() == 2 })
			limited := &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(1 << 30)}}
			holder := verbsContainer(t, p.root)
			holder.Linux.Resources = limited
			for _, annotation := range []string{"true", "{devices: all}", "{devices: [mlx5_0]}",
				"{devices: none}", "{memlock: 1Mi}"} {
				sandbox := &api.PodSandbox{Id: "sandbox", Name: "train-0", Namespace: "ml",
					Annotations: map[string]string{policy.AnnotationKey: annotation}}
				for _, ctr := range []*api.Container{holder, {Id: "bare", Name: "main",
					Linux: &api.LinuxContainer{Resources: limited}}} {
					if _, err := nri.Create(t.Context(), sandbox, ctr); err != nil {
						t.Errorf("%s, container %s: %v", annotation, ctr.GetId(), err)
					}
				}
			}
			if strings.Contains(validator.log.String(), "refused") {
				t.Errorf("the validator said:\n%s", validator.log)
			}
		})
	}
}

// A plugin that injects devices behind the plugin's back does not go past the validator.
func TestValidatorSeesWhatOthersInject(t *testing.T) {
	nri := nritest.New(t, "containerd", "v2.4.2")
	nri.Start(t)
	root := hcatest.V100(t)
	run(t, Options{Socket: nri.Socket, Inventory: inventoryOf(t, root), Policy: mustPolicy(t, "{}")})
	run(t, Options{Socket: nri.Socket, Inventory: inventoryOf(t, root), Policy: mustPolicy(t, "{}"), Validate: true})
	startOther(t, nri, "95", injector{verbsContainer(t, root).GetLinux().GetDevices()[0]})
	await.That(t, await.Patience, "all are registered", func() bool { return nri.Synchronised() == 3 })
	_, err := nri.Create(t.Context(), pod, &api.Container{Id: "container", Name: "main"})
	if err == nil || !strings.Contains(err.Error(), "would start without memlock unlimited") {
		t.Errorf("the creation gives %v, want it refused", err)
	}
}

// injector is a plugin that injects a device and does nothing else.
type injector struct{ device *api.LinuxDevice }

// CreateContainer is called by the runtime.
func (i injector) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddDevice(i.device)
	return adjustment, nil, nil
}
