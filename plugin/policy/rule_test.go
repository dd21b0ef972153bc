// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec"
)

const rules = `
optIn: {resources: [rdma/*]}
rules:
- {name: guests, match: {namespaces: [guest-*]}, deny: true, message: "no RDMA here; ask the fabric team"}
- {name: gold, match: {namespaces: [ml-*], resources: [rdma/gold]}, memlock: unlimited, ipcLock: "true"}
- {name: team-a, match: {namespaces: [ml-*], labels: {team: a}}, memlock: 64Gi}
- {name: vm, match: {namespaces: [ml-*], runtimeHandlers: [vm*]}, memlock: 1Gi}
- {match: {namespaces: [ml-*]}, memlock: memory-limit}
- {name: exempt, match: {namespaces: [infra]}}
- {name: rest, match: {labels: {rest: ""}}, deny: true}
`

func TestRules(t *testing.T) {
	device := []Device{heldVerbs(0)}
	by := func(rule string, grant *spec.Grant) Decision {
		d := byDevice(grant)
		d.Rule = rule
		return d
	}
	none := holds()
	const silence = "the kubelet did not tell which resources the container holds (context deadline exceeded): the creation is tried again; if that does not help, see the kubelet's log on the node"
	tests := map[string]struct {
		config    string
		container Container
		want      Decision
	}{
		"no-rule":                    {"", Container{Namespace: "web", Devices: device, Resources: none}, by("default", unlimited())},
		"denied":                     {"", Container{Namespace: "guest-1", Devices: device}, Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Rule: "guests", Refusal: &Refusal{CauseDenied, `rule "guests" denies RDMA here: no RDMA here; ask the fabric team`}}},
		"not-an-rdma-container":      {"", Container{Namespace: "guest-1", Devices: []Device{gpu(0)}, Resources: holds("nvidia.com/gpu")}, Decision{Signal: SignalNone}},
		"denied-opt-out":             {"", Container{Namespace: "guest-1", Devices: device, Annotations: podAnnotation("false")}, Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Rule: "guests", Refusal: &Refusal{CauseDenied, `rule "guests" denies RDMA here: no RDMA here; ask the fabric team`}}},
		"denied-resource-opt-out":    {"", Container{Namespace: "guest-1", Resources: holds("rdma/ib"), Annotations: podAnnotation("false")}, Decision{Signal: SignalResource, Evidence: "rdma/ib", Rule: "guests", Refusal: &Refusal{CauseDenied, `rule "guests" denies RDMA here: no RDMA here; ask the fabric team`}}},
		"denied-whatever-is-written": {"", Container{Namespace: "guest-1", Resources: none, Annotations: podAnnotation("{")}, Decision{Signal: SignalNone, Rule: "guests", Refusal: &Refusal{CauseDenied, `rule "guests" denies RDMA here: no RDMA here; ask the fabric team`}}},
		"denied-by-resource": {"rules: [{match: {resources: [rdma/*]}, deny: true}]", Container{Namespace: "web", Resources: holds("rdma/ib")},
			Decision{Signal: SignalResource, Evidence: "rdma/ib", Rule: "rules[0]", Refusal: &Refusal{CauseDenied, `rule "rules[0]" denies RDMA in namespace "web": remove the annotation rdma.noderesource.dev and the RDMA resource, or ask the cluster's administrator`}}},
		"first-match-wins":   {"", Container{Namespace: "ml-a", Devices: device, Labels: map[string]string{"team": "a"}, Resources: holds("rdma/gold")}, by("gold", &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes})},
		"second":             {"", Container{Namespace: "ml-a", Devices: device, Labels: map[string]string{"team": "a"}, Resources: none}, by("team-a", &spec.Grant{Memlock: 64 << 30})},
		"other-label":        {"", Container{Namespace: "ml-a", Devices: device, Labels: map[string]string{"team": "b"}, RuntimeHandler: "vm-1", Resources: none}, by("vm", &spec.Grant{Memlock: 1 << 30})},
		"unnamed":            {"", Container{Namespace: "ml-a", Devices: device, MemoryLimit: 1 << 20, Resources: none}, by("rules[4]", &spec.Grant{Memlock: 1 << 20})},
		"label-of-elsewhere": {"", Container{Namespace: "web", Devices: device, Labels: map[string]string{"team": "a"}}, by("default", unlimited())},
		"exempt":             {"", Container{Namespace: "infra", Devices: device, Labels: map[string]string{"rest": ""}}, by("exempt", unlimited())},
		"empty-label":        {"", Container{Namespace: "web", Devices: device, Labels: map[string]string{"rest": ""}}, Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Rule: "rest", Refusal: &Refusal{CauseDenied, `rule "rest" denies RDMA in namespace "web": remove the annotation rdma.noderesource.dev and the RDMA resource, or ask the cluster's administrator`}}},
		"label-missing":      {"", Container{Namespace: "web", Devices: device, Labels: map[string]string{"other": ""}}, by("default", unlimited())},
		"kubelet-silent": {"", Container{Namespace: "ml-a", Devices: device, Resources: silent},
			Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Reason: silence}},
		"kubelet-silent-and-annotated": {"", Container{Namespace: "ml-a", Devices: device, Annotations: podAnnotation("true"), Resources: silent},
			Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Refusal: &Refusal{CauseKubelet, silence}}},
		"kubelet-silent-and-fail": {"{optIn: {onKubeletError: fail}, rules: [{match: {resources: [a/b]}}]}", Container{Namespace: "ml-a", Devices: device, Resources: silent},
			Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Refusal: &Refusal{CauseKubelet, silence}}},
		"kubelet-silent-no-signal-and-fail": {"{optIn: {onKubeletError: fail, resources: [a/b]}}", Container{Namespace: "ml-a", Resources: silent},
			Decision{Signal: SignalNone, Refusal: &Refusal{CauseKubelet, silence}}},
		"kubelet-silent-elsewhere": {"", Container{Namespace: "infra", Devices: device, Resources: silent}, by("exempt", unlimited())},
	}
	node := testNodes(t)["V100"]
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := test.config
			if config == "" {
				config = rules
			}
			got := policyOf(t, config).Decide(test.container, node)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("decision differs (-want +got):\n%s", diff)
			}
		})
	}
}

// What a policy can need decides which events the plugin asks for, and whether it dials the kubelet.
func TestNeeds(t *testing.T) {
	tests := map[string]struct{ ipcLock, resources bool }{
		"":                               {true, false},
		"memlock: 1Gi":                   {false, false},
		"ipcLock: false":                 {false, false},
		"{memlock: 1Gi, ipcLock: force}": {true, false},
		"optIn: {resources: [rdma/*]}":   {true, true},
		"{ipcLock: false, rules: [{match: {namespaces: [a]}, ipcLock: true}]}":                        {true, false},
		"{ipcLock: false, rules: [{match: {resources: [a/b]}, memlock: 1Gi}]}":                        {false, true},
		"{memlock: 1Gi, rules: [{match: {namespaces: [a]}, memlock: unlimited}]}":                     {true, false},
		"{memlock: 1Gi, rules: [{match: {namespaces: [a]}, memlock: memory-limit}]}":                  {false, false},
		"{ipcLock: false, rules: [{match: {resources: [a/b]}, deny: true}]}":                          {false, true},
		"{memlock: 1Gi, rules: [{match: {namespaces: [a]}, deny: true}, {match: {namespaces: [b]}}]}": {false, false},
	}
	for config, want := range tests {
		t.Run(config, func(t *testing.T) {
			p := policyOf(t, config)
			got := struct{ ipcLock, resources bool }{p.GivesIPCLock(), p.NeedsResources()}
			if got != want {
				t.Errorf("GivesIPCLock, NeedsResources: %v, want %v", got, want)
			}
		})
	}
}

// A Policy is used by every request at once: the race detector looks on.
func TestPolicyIsSafeForConcurrentUse(t *testing.T) {
	p := policyOf(t, rules)
	node := testNodes(t)["V100"]
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 20 {
				p.Decide(Container{Namespace: "ml-a", Devices: []Device{heldVerbs(0)}, Resources: holds("rdma/ib")}, node)
				if !p.GivesIPCLock() || !p.NeedsResources() {
					t.Error("the policy has changed")
				}
			}
		})
	}
	wait.Wait()
}
