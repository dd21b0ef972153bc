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
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// What is said to who may not have what they ask for: every refusal there is, on the node with mlx5_0 down, mlx5_1 up
// and the Ethernet HCA mlx5_bond_0.
func TestRefusals(t *testing.T) {
	a100, broken, none := node(t, "A100"), node(t, "Broken"), node(t, "NoRDMA")
	many := Facts{HCAs: ReadNow(func() (*hca.Inventory, error) {
		var n hca.Inventory
		for i := range 40 {
			n.HCAs = append(n.HCAs, hca.HCA{Name: fmt.Sprintf("mlx5_%d", i), Ports: []hca.Port{{State: hca.StateActive}}})
		}
		return &n, nil
	})}
	tests := map[string]struct {
		config    string
		container subject
		node      Facts
	}{
		"unreadable":           {"", asking("{memlok: 1Gi}"), a100},
		"namespace not listed": {listed, annotated("guest", "true"), a100},
		"privileged, not listed": {listed, subject{Container: Container{Namespace: "guest", AllDevices: true, Devices: []Device{heldVerbs(0)},
			Annotations: podAnnotation("true")}}, a100},
		"devices, not listed": {"optIn: {namespaces: [guest]}", annotated("guest", "{devices: all}"), a100},
		"not held":            {listed, annotated("ml-a", "{devices: [mlx5_1]}", heldVerbs(0)), a100},
		"all, not held": {listed, annotated("ml-a", "", heldVerbs(1)).with(func(c *subject) {
			c.Name, c.Annotations = "c", map[string]string{ownKey("c"): "{devices: all}"}
		}), a100},
		"less, for it alone": {listed, subject{Container: Container{Namespace: "guest", Name: "c",
			Annotations: map[string]string{AnnotationKey + "/container.c": "{memlock: 1Gi}"}}}, a100},
		"netns exclusive":    {listed, annotated("ml-a", "true"), exclusive(t)},
		"HCA unread":         {listed, annotated("ml-a", "{devices: [mlx5_0]}"), unread(t)},
		"an HCA unread":      {listed, annotated("ml-a", "true"), unread(t)},
		"a virtual function": {listed, annotated("ml-a", "{devices: [mlx5_1]}"), withFunctions(t)},
		"memlock unchanged":  {"rules: [{match: {namespaces: [guest]}, memlock: unchanged}]", asking("{memlock: 1Gi}"), a100},
		"ipcLock, unchanged": {"rules: [{match: {namespaces: [guest]}, memlock: unchanged}]",
			asking("{ipcLock: true}"), a100},
		"above the least": {"rules: [{name: vf, match: {resources: [rdma/vf]}, memlock: 1Gi}]",
			asking("{memlock: 2Gi}").with(func(c *subject) { c.Resources = unlisted() }), a100},
		"hostile namespace": {listed, annotated("a\n\u202e"+strings.Repeat("x", 1000), "true"), a100},
		"memlock above":     {"memlock: 16Gi", asking("{memlock: 17Gi}"), a100},
		"memlock unlimited": {"{memlock: 16Gi, rules: [{name: small, match: {namespaces: [guest]}, memlock: 1Gi}]}",
			asking("{memlock: unlimited}"), a100},
		"no memory limit":         {"memlock: memory-limit", holding(heldVerbs(0)), a100},
		"asks for a memory limit": {"", annotated("", "{memlock: memory-limit}", heldVerbs(0)), a100},
		"ipcLock not given":       {"ipcLock: false", asking("{ipcLock: true}"), a100},
		"ipcLock voids memlock":   {"memlock: 16Gi", asking("{ipcLock: true}"), a100},
		"no such HCA":             {listed, annotated("ml-a", "{devices: [mlx5_7]}"), a100},
		"no such HCA of many":     {listed, annotated("ml-a", "{devices: [mlx5_70]}"), many},
		"no such HCA of all states": {listed, annotated("ml-a", "{devices: [mlx5_7]}"), changed(func(n *hca.Inventory) {
			n.HCAs[0].Ports[0].State = "INIT"
			n.HCAs[1].Ports, n.HCAs[1].Unread = nil, "the HCA has not responded"
		})(t)},
		"no HCA at all": {listed, annotated("ml-a", "{devices: [mlx5_0]}"), none},
		"HCA not selected": {"inject: {namespaces: [ml-*], linkLayers: [InfiniBand]}",
			annotated("ml-a", "{devices: [mlx5_bond_0]}"), a100},
		"HCA broken":             {listed, annotated("ml-a", "{devices: [node_is_block]}"), broken},
		"HCA without verbs":      {listed, annotated("ml-a", "{devices: [no_verbs]}"), broken},
		"none passes":            {"inject: {namespaces: [ml-*], names: [mlx5_0]}", annotated("ml-a", "true"), a100},
		"none on the node":       {listed, annotated("ml-a", "{devices: all}"), none},
		"all are broken":         {"inject: {namespaces: [ml-*], names: [node_is_*]}", annotated("ml-a", "true"), broken},
		"HCAs cannot be read":    {listed, annotated("ml-a", "true"), unreadable(t)},
		"verbs cannot be read":   {"", asking("true"), unreadable(t)},
		"path taken":             {listed, annotated("ml-a", "true", deviceAt("/dev/infiniband/uverbs1", "b", 8, 16)), a100},
		"path taken, written so": {listed, annotated("ml-a", "true", deviceAt("/dev//infiniband/./rdma_cm", "c", 1, 3)), a100},
		"kubelet silent":         {"optIn: {resources: [rdma/*]}", subject{Container: Container{Annotations: podAnnotation("true")}, Resources: silent}, a100},
		"kubelet silent, ceiling": {"rules: [{match: {resources: [rdma/*]}, memlock: 1Gi}]",
			subject{Container: Container{Devices: []Device{heldVerbs(0)}, Annotations: podAnnotation("true")}, Resources: silent}, a100},
		"kubelet verbose": {"optIn: {resources: [rdma/*]}", subject{Container: Container{Annotations: podAnnotation("true")}, Resources: func() ([]string, bool, error) {
			return nil, false, errors.New("line one\nline two " + strings.Repeat("\u202e", 1000))
		}}, a100},
		"pod-wide, without RDMA": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: podHolds(allotted("nvidia.com/gpu"))},
			a100},
		"pod-wide, kubelet silent": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: silentOfPods}, a100},
		"pod-wide, no kubelet":     {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: func() ([]Allotted, bool, error) { return nil, false, fmt.Errorf("x: %w", ErrNoKubelet) }}, a100},
		"no kubelet":               {"optIn: {resources: [rdma/*]}", annotated("", "true"), a100},
	}
	var got strings.Builder
	causes := map[Cause]bool{}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		d := policyOf(t, test.config).decide(test.container, test.node)
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
	nodes := map[string]Facts{"unreadable": unreadable(t)}
	for name := range hcatest.All {
		nodes[name] = node(t, name)
	}
	for config, c := range map[string]subject{
		listed: annotated("ml-a", "true"),
		"optIn: {resources: [rdma/*]}": {Resources: func() ([]string, bool, error) {
			return nil, false, errors.New("\n" + strings.Repeat("\u202e", 1000))
		}},
		"skipRuntimeHandlers: ['*']": {Container: Container{RuntimeHandler: strings.Repeat("\n", 1000),
			Annotations: podAnnotation("true")}},
		"rules: [{match: {resources: [a/b]}, memlock: 1Gi}]": askedFor("", silent, heldVerbs(0)),
		"{optIn: {resources: [a/b]}, rules: [{match: {namespaces: [fabric]}, inject: {management: true, always: true}}]}": askedFor(
			"fabric", kubeletHolds("a/b")),
	} {
		for name, node := range nodes {
			d := policyOf(t, config).decide(c, node)
			for _, line := range append(d.Warnings, d.Reason) {
				checkOneLine(t, line)
			}
			if len(d.Warnings) > 2 {
				t.Errorf("%s, node %s: %d warnings about one container: %q", config, name, len(d.Warnings), d.Warnings)
			}
		}
	}
}

// A configuration that cannot be read hits nobody whom no configuration would make an RDMA container.
func TestMissing(t *testing.T) {
	p := Missing(errors.New("/etc/rdma-spec/config.yaml: memlok: unknown key"))
	own := func(value string) map[string]string {
		return map[string]string{AnnotationKey + "/container.app": value}
	}
	verbs := []Device{heldVerbs(0)}
	node := node(t, "V100")
	for name, test := range map[string]struct {
		container subject
		refused   Cause
	}{
		"plain":                     {subject{Container: Container{}}, ""},
		"opted out":                 {subject{Container: Container{Annotations: own("false")}}, ""},
		"opted out, with a device":  {subject{Container: Container{Annotations: podAnnotation("false"), Devices: verbs}}, ""},
		"handler that is skipped":   {subject{Container: Container{RuntimeHandler: "kata-qemu", Annotations: podAnnotation("true")}}, ""},
		"its device is skipped too": {subject{Container: Container{RuntimeHandler: "runsc-x", Devices: verbs}}, ""},
		"pod-wide less":             {annotated("", "{memlock: 16Gi}"), ""},
		"less for this container":   {subject{Container: Container{Annotations: own("{memlock: 16Gi}")}}, CauseNoPolicy},
		"unreadable":                {annotated("", "yes please"), CauseUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			test.container.Name = "app"
			d := p.decide(test.container, node)
			if d.Grant != nil || (d.Refusal == nil) != (test.refused == "") ||
				d.Refusal != nil && d.Refusal.Cause != test.refused {
				t.Errorf("decided %+v, want refused for %q", d, test.refused)
			}
		})
	}
}
