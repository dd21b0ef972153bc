// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// What is said to who may not have what they ask for: every refusal there is, on the node with mlx5_0 down, mlx5_1 up
// and the Ethernet HCA mlx5_bond_0.
func TestRefusals(t *testing.T) {
	nodes := testNodes(t)
	wanting := func(annotation string, devices ...Device) Container {
		return Container{Namespace: "ml-a", Annotations: podAnnotation(annotation), Devices: devices}
	}
	many := Facts{HCAs: func() (*hca.Inventory, error) {
		var n hca.Inventory
		for i := range 40 {
			n.HCAs = append(n.HCAs, hca.HCA{Name: fmt.Sprintf("mlx5_%d", i), Ports: []hca.Port{{State: hca.StateActive}}})
		}
		return &n, nil
	}}
	tests := map[string]struct {
		config    string
		container Container
		node      Facts
	}{
		"unreadable":           {"", asking("{memlok: 1Gi}"), nodes["A100"]},
		"namespace not listed": {listed, Container{Namespace: "guest", Annotations: podAnnotation("true")}, nodes["A100"]},
		"privileged, not listed": {listed, Container{Namespace: "guest", AllDevices: true, Devices: []Device{heldVerbs(0)},
			Annotations: podAnnotation("true")}, nodes["A100"]},
		"devices, not listed": {"optIn: {namespaces: [guest]}", Container{Namespace: "guest",
			Annotations: podAnnotation("{devices: all}")}, nodes["A100"]},
		"not held": {listed, wanting("{devices: [mlx5_1]}", heldVerbs(0)), nodes["A100"]},
		"less, for it alone": {listed, Container{Namespace: "guest", Name: "c",
			Annotations: map[string]string{AnnotationKey + "/container.c": "{memlock: 1Gi}"}}, nodes["A100"]},
		"netns exclusive":    {listed, wanting("true"), exclusive(t)},
		"HCA unread":         {listed, wanting("{devices: [mlx5_0]}"), unread(t)},
		"an HCA unread":      {listed, wanting("true"), unread(t)},
		"a virtual function": {listed, wanting("{devices: [mlx5_1]}"), withFunctions(t)},
		"memlock unchanged": {"rules: [{match: {namespaces: [guest]}, memlock: unchanged}]",
			asking("{memlock: 1Gi}"), nodes["A100"]},
		"ipcLock, unchanged": {"rules: [{match: {namespaces: [guest]}, memlock: unchanged}]",
			asking("{ipcLock: true}"), nodes["A100"]},
		"above the least": {"rules: [{name: vf, match: {resources: [rdma/vf]}, memlock: 1Gi}]",
			asking("{memlock: 2Gi}").with(func(c *Container) { c.Resources = unlisted() }), nodes["A100"]},
		"hostile namespace": {listed, Container{Namespace: "a\n\u202e" + strings.Repeat("x", 1000),
			Annotations: podAnnotation("true")}, nodes["A100"]},
		"memlock above": {"memlock: 16Gi", asking("{memlock: 17Gi}"), nodes["A100"]},
		"memlock unlimited": {"{memlock: 16Gi, rules: [{name: small, match: {namespaces: [guest]}, memlock: 1Gi}]}",
			asking("{memlock: unlimited}"), nodes["A100"]},
		"no memory limit": {"memlock: memory-limit", Container{Devices: []Device{heldVerbs(0)}}, nodes["A100"]},
		"asks for a memory limit": {"", Container{Devices: []Device{heldVerbs(0)},
			Annotations: podAnnotation("{memlock: memory-limit}")}, nodes["A100"]},
		"ipcLock not given":     {"ipcLock: false", asking("{ipcLock: true}"), nodes["A100"]},
		"ipcLock voids memlock": {"memlock: 16Gi", asking("{ipcLock: true}"), nodes["A100"]},
		"no such HCA":           {listed, wanting("{devices: [mlx5_7]}"), nodes["A100"]},
		"no such HCA of many":   {listed, wanting("{devices: [mlx5_70]}"), many},
		"no such HCA of all states": {listed, wanting("{devices: [mlx5_7]}"), changed(func(n *hca.Inventory) {
			n.HCAs[0].Ports[0].State = "INIT"
			n.HCAs[1].Ports, n.HCAs[1].Unread = nil, "it has not answered"
		})(t)},
		"no HCA at all": {listed, wanting("{devices: [mlx5_0]}"), nodes["NoRDMA"]},
		"HCA not selected": {"inject: {namespaces: [ml-*], linkLayers: [InfiniBand]}",
			wanting("{devices: [mlx5_bond_0]}"), nodes["A100"]},
		"HCA broken":           {listed, wanting("{devices: [node_is_block]}"), nodes["Broken"]},
		"HCA without verbs":    {listed, wanting("{devices: [no_verbs]}"), nodes["Broken"]},
		"none passes":          {"inject: {namespaces: [ml-*], names: [mlx5_0]}", wanting("true"), nodes["A100"]},
		"none on the node":     {listed, wanting("{devices: all}"), nodes["NoRDMA"]},
		"all are broken":       {"inject: {namespaces: [ml-*], names: [node_is_*]}", wanting("true"), nodes["Broken"]},
		"HCAs cannot be read":  {listed, wanting("true"), nodes["unreadable"]},
		"verbs cannot be read": {"", asking("true"), nodes["unreadable"]},
		"path taken": {listed, wanting("true", Device{Path: "/dev/infiniband/uverbs1", Type: "b", Major: 8,
			Minor: 16}), nodes["A100"]},
		"path taken, written so": {listed, wanting("true", Device{Path: "/dev//infiniband/./rdma_cm", Type: "c", Major: 1,
			Minor: 3}), nodes["A100"]},
		"kubelet silent": {"optIn: {resources: [rdma/*]}", Container{Annotations: podAnnotation("true"),
			Resources: silent}, nodes["A100"]},
		"kubelet silent, ceiling": {"rules: [{match: {resources: [rdma/*]}, memlock: 1Gi}]",
			Container{Devices: []Device{heldVerbs(0)}, Annotations: podAnnotation("true"), Resources: silent}, nodes["A100"]},
		"kubelet verbose": {"optIn: {resources: [rdma/*]}", Container{Annotations: podAnnotation("true"),
			Resources: func() ([]string, bool, error) {
				return nil, false, errors.New("line one\nline two " + strings.Repeat("\u202e", 1000))
			}}, nodes["A100"]},
		"pod-wide, without RDMA": {"", Container{Annotations: podAnnotation("true"), PodHolds: unlisted("nvidia.com/gpu")},
			nodes["A100"]},
		"pod-wide, kubelet silent": {"", Container{Annotations: podAnnotation("true"), PodHolds: silent}, nodes["A100"]},
		"pod-wide, no kubelet": {"", Container{Annotations: podAnnotation("true"),
			PodHolds: func() ([]string, bool, error) { return nil, false, fmt.Errorf("x: %w", ErrNoKubelet) }}, nodes["A100"]},
		"no kubelet": {"optIn: {resources: [rdma/*]}", Container{Annotations: podAnnotation("true")}, nodes["A100"]},
	}
	var got strings.Builder
	causes := map[Cause]bool{}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		d := policyOf(t, test.config).Decide(test.container, test.node)
		if d.Refusal == nil {
			t.Errorf("%s: not refused: %+v", name, d)
			continue
		}
		if d.Grant != nil || d.Reason != "" || d.Warnings != nil {
			t.Errorf("%s: a refusal says it all, and here is more: %+v", name, d)
		}
		checkOneLine(t, d.Refusal.Error())
		causes[d.Refusal.Cause] = true
		fmt.Fprintf(&got, "%s (%s)\n    %v\n", name, d.Refusal.Cause, d.Refusal)
	}
	golden.Compare(t, filepath.Join("testdata", "refusals.golden"), got.String())
	if len(causes) != 8 {
		t.Errorf("the refusals have %d causes, want each of the 8: %v", len(causes), causes)
	}
}

// What is said of a device under a verbs device's path must fit a log, too.
func TestWarningsFitALog(t *testing.T) {
	nodes := testNodes(t)
	for config, c := range map[string]Container{
		listed: {Namespace: "ml-a", Annotations: podAnnotation("true")},
		"optIn: {resources: [rdma/*]}": {Resources: func() ([]string, bool,
			error) {
			return nil, false, errors.New("\n" + strings.Repeat("\u202e", 1000))
		}},
		"skipRuntimeHandlers: ['*']": {RuntimeHandler: strings.Repeat("\n", 1000),
			Annotations: podAnnotation("true")},
		"rules: [{match: {resources: [a/b]}, memlock: 1Gi}]":                                                              {Devices: []Device{heldVerbs(0)}, Resources: silent},
		"{optIn: {resources: [a/b]}, rules: [{match: {namespaces: [fabric]}, inject: {management: true, always: true}}]}": {Namespace: "fabric", Resources: holds("a/b")},
	} {
		for name, node := range nodes {
			d := policyOf(t, config).Decide(c, node)
			for _, line := range append(d.Warnings, d.Reason) {
				checkOneLine(t, line)
			}
			if len(d.Warnings) > 2 {
				t.Errorf("%s, node %s: %d warnings about one container: %q", config, name, len(d.Warnings), d.Warnings)
			}
		}
	}
}
