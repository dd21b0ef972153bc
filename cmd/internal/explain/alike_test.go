// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// configurations make differences between what pods say.
var configurations = []string{
	"{}",
	"inject: {namespaces: [ml-*, default]}",
	"{optIn: {devices: false, resources: [rdma/*, nvidia.com/hostdev]}, inject: {namespaces: [ml-a]}}",
	"{memlock: memory-limit, optIn: {namespaces: ['*']}}",
	"{memlock: 16Gi, inject: {namespaces: [ml-*], linkLayers: [Ethernet]}, skipRuntimeHandlers: ['']}",
	"{ipcLock: false, optIn: {resources: ['*/*']}}",
	"{optIn: {devices: false, mofedRuntimeHandlers: ['nvidia*', '']}}",
	`
inject: {namespaces: [ml-*, web]}
rules:
- {name: guests, match: {namespaces: [guest-*]}, memlock: unchanged}
- {name: v100, match: {resources: [rdma/rdma_v100]}, memlock: 64Gi}
- {name: rest, match: {namespaces: [ml-*]}, memlock: memory-limit, ipcLock: always}
`, `
inject: {namespaces: [ml-a]}
rules:
- {name: inject, match: {namespaces: [ml-*], resources: [nvidia.com/*]}, inject: {names: [mlx5_1, rxe0], management: true, always: true}}
- {name: no-gpu, match: {resources: [nvidia.com/gpu]}, ipcLock: false}
- {name: web, match: {namespaces: [web]}, memlock: 1Gi}
`,
}

// What explain says of a manifest is what the plugin decides about what containerd says of its pod.
func TestExplainer_decidesAsPlugin(t *testing.T) {
	var policies []*policy.Policy
	for _, text := range configurations {
		p, err := policy.FromText([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, p)
	}
	var nodes []aNode
	for _, build := range []func(testing.TB) string{hcatest.V100, hcatest.SoftRoCE, hcatest.A100} {
		root := build(t)
		listed, err := hca.Scan(root)
		if err != nil {
			t.Fatal(err)
		}
		live := policy.LiveFacts(root)
		live.HCAs = policy.ReadNow(func() (*hca.Inventory, error) { return listed, nil })
		nodes = append(nodes, aNode{listed, live})
	}
	seen := map[string]int{}
	for i := range uint64(800) {
		r := rand.New(rand.NewPCG(i, 4))
		decideAlike(t, fmt.Sprint("case ", i), randomPod(r), pick(r, policies...), pick(r, nodes...), seen)
		if t.Failed() {
			return
		}
	}
	t.Log(seen)
	for _, kind := range []string{
		"grant by annotation", "grant by device", "grant by environment", "grant by resource", "nothing", "nothing: opted out", "open",
		"refused: unreadable", "refused: namespace", "refused: ceiling", "refused: memory-limit",
		"refused: no-such-hca", "refused: device-path",
	} {
		if seen[kind] < 5 {
			t.Errorf("%d decisions of the kind %q: the cases prove too little", seen[kind], kind)
		}
	}
}

// aNode is what explain reads of a node, and what the plugin does.
type aNode struct {
	listed *hca.Inventory
	live   policy.Facts
}

func decideAlike(t *testing.T, name string, model modelPod, p *policy.Policy, node aNode, seen map[string]int) {
	t.Helper()
	text := model.manifest(t)
	m, err := manifest.Read(bytes.NewReader(text))
	if err != nil || len(m.Pods) != 1 || len(m.Pods[0].Containers) != len(model.containers) {
		t.Fatalf("%s: read %+v, %v\n%s", name, m, err, text)
	}
	for _, c := range m.Pods[0].Containers {
		model := model
		for _, mc := range model.containers {
			if mc.name != c.Name {
				continue
			}
			plain, injected := decided(t, model, mc, p, node, false), decided(t, model, mc, p, node, true)
			explained := func(assume []string) Container {
				e := Explainer{Policy: p, Node: node.listed, Assume: assume}
				out, err := e.Container(m.Pods[0], c)
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			compare := func(what string, plugin, explained policy.Decision) {
				if diff := cmp.Diff(plugin, explained); diff != "" {
					t.Errorf("%s, container %s, %s (-plugin +explain):\n%s\n%s", name, c.Name, what, diff, text)
				}
			}
			compare("no device plugin injects", plain, explained([]string{"none", "claim/none"}).Decision)
			compare("device plugins inject", injected, explained([]string{"*/*", "claim/*"}).Decision)
			if open := explained(nil); open.Otherwise != nil {
				compare("left open, if injected", injected, open.Decision)
				compare("left open, otherwise", plain, *open.Otherwise)
				seen["open"]++
			} else {
				compare("left open, all the same", plain, open.Decision)
				if plain.Grant == nil && (injected.Grant != nil || kindOf(plain) != kindOf(injected)) {
					t.Errorf("%s, container %s: what hangs on the device plugin is not left open\n%s", name, c.Name, text)
				}
			}
			seen[kindOf(plain)]++
			seen[kindOf(injected)]++
		}
	}
}

// decided is the plugin's decision about what containerd says of a container.
func decided(t *testing.T, model modelPod, c modelContainer, p *policy.Policy, node aNode,
	injected bool) policy.Decision {
	t.Helper()
	said := plugin.ContainerOf(model.sandbox(), model.container(t, c, node.listed, injected))
	facts := node.live
	facts.Resources = func() (names []string, known bool, err error) {
		if c.init && !c.sidecar || c.ephemeral { // the kubelet does not list them
			return nil, false, nil
		}
		return c.holds(), !c.dynamic(), nil
	}
	facts.PodHolds = func() (held []policy.Allotted, claims bool, err error) {
		for _, c := range model.containers {
			if c.init && !c.sidecar || c.ephemeral {
				continue
			}
			claims = claims || c.dynamic()
			for _, name := range c.holds() {
				held = append(held, policy.Allotted{Resource: name})
			}
		}
		return held, claims, nil
	}
	return p.Decide(said, facts)
}

func kindOf(d policy.Decision) string {
	switch {
	case d.Refusal != nil:
		return "refused: " + string(d.Refusal.Cause)
	case d.Grant != nil:
		return "grant by " + string(d.Signal)
	case d.Reason == "opted out by annotation":
		return "nothing: opted out"
	}
	return "nothing"
}
