// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// asking is a container that holds a verbs device, with an annotation, 2Gi of memory, in a namespace that is not
// listed.
func asking(annotation string) Container {
	c := Container{Namespace: "guest", Devices: []Device{heldVerbs(0)}, MemoryLimit: 2 << 30}
	if annotation != "" {
		c.Annotations = podAnnotation(annotation)
	}
	return c
}

// A physical function that is injected beside others of its card, in exclusive netns mode and where the host's network
// is shared.
func TestInjectedFunctions(t *testing.T) {
	c := Container{Namespace: "ml-a", Annotations: podAnnotation("true")}
	const everything = "inject: {namespaces: [ml-*], functions: [physical, virtual, scalable]}"
	for name, test := range map[string]struct {
		config   string
		node     func(testing.TB) Facts
		change   func(*Container)
		want     []string
		warnings []string
	}{
		"physical": {listed, withFunctions, nil, []string{"mlx5_bond_0"},
			[]string{"the container gets physical functions whose virtual or scalable ones may belong to other pods: " +
				"mlx5_bond_0"}},
		"virtual too": {"inject: {namespaces: [ml-*], functions: [virtual]}", withFunctions, nil,
			[]string{"mlx5_1"}, nil},
		"scalable": {"inject: {namespaces: [ml-*], functions: [scalable]}", withFunctions, nil,
			[]string{"mlx5_0"}, nil},
		"all of them": {everything, withFunctions, nil, []string{"mlx5_0", "mlx5_1", "mlx5_bond_0"},
			[]string{"the container gets physical functions whose virtual or scalable ones may belong to other pods: " +
				"mlx5_bond_0"}},
		"a virtual one by name": {everything, withFunctions,
			func(c *Container) { c.Annotations = podAnnotation("{devices: [mlx5_1]}") }, []string{"mlx5_1"}, nil},
		"host network in exclusive mode": {listed, exclusive, func(c *Container) { c.HostNetwork = true },
			[]string{"mlx5_1", "mlx5_bond_0"}, nil},
		"unasked in exclusive mode": {"rules: [{match: {resources: [rdma/*]}, inject: {always: true}}]", exclusive,
			func(c *Container) { c.Annotations, c.Resources = nil, holds("rdma/a") }, nil,
			[]string{"no HCAs are injected: the node's RDMA devices belong to network namespaces (netns_mode is exclusive), " +
				"so an HCA of the host's cannot be opened in the container's"}},
		"another HCA never answered": {"inject: {namespaces: [ml-*], names: [mlx5_1]}", unread, nil, []string{"mlx5_1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := c
			if test.change != nil {
				test.change(&c)
			}
			d := policyOf(t, test.config).Decide(c, test.node(t))
			if d.Grant == nil {
				t.Fatalf("no grant: %+v", d)
			}
			var got []string
			for _, dev := range d.Grant.Devices {
				if dev.Kind == hca.KindVerbs {
					got = append(got, dev.HCA)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(test.warnings, d.Warnings); diff != "" {
				t.Errorf("warnings, -want +got:\n%s", diff)
			}
		})
	}
}

// RLIMIT_MEMLOCK: what the policy gives, and less where the annotation asks for less.
func TestMemlock(t *testing.T) {
	tests := []struct {
		config, annotation string
		want               spec.Limit // 0: refused
	}{
		{"", "", spec.Unlimited},
		{"", "true", spec.Unlimited},
		{"", "{memlock: unlimited}", spec.Unlimited},
		{"", "{memlock: 16Gi}", 16 << 30},
		{"", "{memlock: memory-limit}", 2 << 30},
		{"memlock: 16Gi", "", 16 << 30},
		{"memlock: 16Gi", "{memlock: 16Gi}", 16 << 30},
		{"memlock: 16Gi", "{memlock: 17179869184}", 16 << 30},
		{"memlock: 16Gi", "{memlock: 1}", 1},
		{"memlock: 16Gi", "{memlock: 17179869185}", 0},
		{"memlock: 16Gi", "{memlock: unlimited}", 0},
		{"memlock: 16Gi", "{memlock: memory-limit}", 2 << 30},
		{"memlock: 1Gi", "{memlock: memory-limit}", 0},
		{"memlock: memory-limit", "", 2 << 30},
		{"memlock: memory-limit", "{memlock: memory-limit}", 2 << 30},
		{"memlock: memory-limit", "{memlock: 500M}", 500_000_000},
		{"memlock: memory-limit", "{memlock: 2147483649}", 0},
		{"memlock: memory-limit", "{memlock: unlimited}", 0},
		{"memlock: 65536", "", 65536},
		{"memlock: 500M", "", 500_000_000},
		{"memlock: 16777216.0", "", 16 << 20}, // YAML's floats
		{"memlock: 1e9", "", 1_000_000_000},   // and exponents
		{"memlock: 0x10000", "", 65536},       // hexadecimal
		{"memlock: 65_536", "", 65536},        // underscores
		{"memlock: 0200000", "", 65536},       // YAML 1.1: octal
		{"memlock: '0200000'", "", 200000},    // text is a quantity: decimal
		{"memlock: 18446744073709551615", "", spec.Unlimited},
	}
	node := testNodes(t)["V100"]
	for _, test := range tests {
		t.Run(test.config+" "+test.annotation, func(t *testing.T) {
			got := policyOf(t, test.config).Decide(asking(test.annotation), node)
			var limit spec.Limit
			if got.Grant != nil {
				limit = got.Grant.Memlock
			} else if got.Refusal == nil || got.Refusal.Cause != CauseCeiling {
				t.Errorf("neither a grant nor a refusal for the ceiling: %+v", got)
			}
			if limit != test.want {
				t.Errorf("memlock is %s, want %s", limit, test.want)
			}
		})
	}
}

// CAP_IPC_LOCK: each ipcLock next to each kind of memlock, and each with what an annotation can ask for.
func TestIPCLock(t *testing.T) {
	var got strings.Builder
	node := testNodes(t)["V100"]
	for _, ipcLock := range []string{"true", "false", "requested", "always"} {
		for _, memlock := range []string{"unlimited", "1Gi", "memory-limit", "unchanged"} {
			p := policyOf(t, fmt.Sprintf("{ipcLock: false, rules: [{match: {namespaces: ['*']}, memlock: %s, ipcLock: %s}]}",
				memlock, ipcLock))
			for _, annotation := range []string{"", "{ipcLock: true}", "{ipcLock: false}", "{memlock: 64Ki}",
				"{memlock: 64Ki, ipcLock: true}"} {
				fmt.Fprintf(&got, "ipcLock %s, memlock %s, annotation %s: ", ipcLock, memlock, annotation)
				switch d := p.Decide(asking(annotation), node); {
				case d.Refusal != nil:
					fmt.Fprintf(&got, "refused (%s)\n", d.Refusal.Cause)
				case d.Grant.IPCLock == spec.IPCLockNo:
					fmt.Fprintln(&got, "no")
				default:
					fmt.Fprintln(&got, d.Grant.IPCLock)
				}
			}
		}
	}
	golden.Compare(t, filepath.Join("testdata", "ipclock.golden"), got.String())
}

// Devices: what is injected on each of the named nodes.
func TestDevices(t *testing.T) {
	const rule = "rules: [{name: fabric, match: {namespaces: [net]}, inject: {management: true, always: true}}]"
	wanting := func(annotation string) Container {
		return Container{Namespace: "ml-a", Annotations: podAnnotation(annotation)}
	}
	withDevices := func(c Container, devices ...Device) Container { c.Devices = devices; return c }
	list := func(devices ...hca.Device) []hca.Device { return devices }
	tests := map[string]struct {
		node, config string
		container    Container
		want         []hca.Device
		wantWarnings []string
	}{
		"all-active": {"A100", listed, wanting("true"),
			list(verbs(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"all-asked-for": {"A100", listed, wanting("{devices: all}"),
			list(verbs(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"none": {"A100", listed, wanting("{devices: none}"), nil, nil},
		"named": {"A100", listed, wanting("{devices: [mlx5_bond_0]}"),
			list(verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"named-though-down": {"A100", listed, wanting("{devices: [mlx5_0]}"), list(verbs(0, "mlx5_0"), rdmaCM()),
			[]string{"the container gets HCAs that it asks for and that have no ACTIVE port: mlx5_0"}},
		"named-twice": {"A100", listed, wanting("{devices: [mlx5_1, mlx5_1]}"),
			list(verbs(1, "mlx5_1"), rdmaCM()), nil},
		"named-renamed": {"Renamed", listed, wanting("{devices: [ibp12s0]}"),
			list(verbs(1, "ibp12s0"), rdmaCM()), nil},
		"holds-one-says-true":    {"A100", listed, withDevices(wanting("true"), heldVerbs(1)), nil, nil},
		"holds-one-asks-for-all": {"A100", listed, withDevices(wanting("{devices: all}"), heldVerbs(1)), nil, nil},
		"holds-one-asks-for-it":  {"A100", listed, withDevices(wanting("{devices: [mlx5_1]}"), heldVerbs(1)), nil, nil},
		"holds-two-asks-for-one": {"A100", listed, withDevices(wanting("{devices: [mlx5_1]}"), heldVerbs(0),
			heldVerbs(1)), nil, nil},
		"holds-another-at-dev-null": {"A100", listed, withDevices(wanting("true"), Device{Path: "/dev/null", Type: "c",
			Major: 1, Minor: 3}), list(verbs(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"by-name": {"EightHCA", "inject: {namespaces: [ml-*], names: ['mlx5_[0-1]']}", wanting("true"),
			list(verbs(0, "mlx5_0"), verbs(1, "mlx5_1"), rdmaCM()), nil},
		"by-link-layer": {"A100", "inject: {namespaces: [ml-*], linkLayers: [Ethernet]}", wanting("true"),
			list(verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"by-netdev": {"A100", "inject: {namespaces: [ml-*], netdevs: [bond*]}", wanting("true"),
			list(verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"by-numa-node": {"V100", "inject: {namespaces: [ml-*], numaNodes: [1]}", wanting("true"),
			list(verbs(1, "mlx5_1"), rdmaCM()), nil},
		"soft-hcas-by-numa-node": {"SoftRoCE", "inject: {namespaces: [ml-*], numaNodes: [-1]}", wanting("true"),
			list(verbs(0, "rxe0"), verbs(1, "rxe1"), rdmaCM()), nil},
		"no-rdma-cm": {"NoRDMACM", listed, wanting("true"), list(verbs(0, "mlx5_0"), verbs(1, "mlx5_1")),
			[]string{"the node has no sound /dev/infiniband/rdma_cm, so connections by RDMA_CM will fail: load the module " +
				"rdma_ucm"}},
		"efa-needs-no-rdma-cm": {"EFA", listed, wanting("true"), list(verbs(0, "efa_0"), verbs(1, "rdmap144s27")), nil},
		"management": {"A100", "{" + rule + ", optIn: {resources: [rdma/*]}}", Container{Namespace: "net",
			Resources: holds("rdma/ib")},
			list(verbs(1, "mlx5_1"), umad(1, "mlx5_1"), issm(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), umad(2, "mlx5_bond_0"),
				issm(2, "mlx5_bond_0"), rdmaCM()),
			[]string{`rule "fabric" gives the management devices of mlx5_1, mlx5_bond_0, with which the container can disturb the whole fabric`}},
		"management-less": {"A100", "{" + rule + ", optIn: {resources: [rdma/*]}}", Container{Namespace: "net",
			Annotations: podAnnotation("{devices: [mlx5_0]}"), Resources: holds("rdma/ib")},
			list(verbs(0, "mlx5_0"), umad(0, "mlx5_0"), issm(0, "mlx5_0"), rdmaCM()),
			[]string{"the container gets HCAs that it asks for and that have no ACTIVE port: mlx5_0",
				`rule "fabric" gives the management devices of mlx5_0, with which the container can disturb the whole fabric`}},
		"rule-and-none": {"A100", "{" + rule + ", optIn: {resources: [rdma/*]}}", Container{Namespace: "net",
			Annotations: podAnnotation("{devices: none}"), Resources: holds("rdma/ib")}, nil, nil},
		"rule-leaves-selectors-to-the-general-ones": {"A100",
			"{inject: {linkLayers: [InfiniBand]}, rules: [{match: {resources: [rdma/*]}, inject: {netdevs: [], always: true}}]}",
			Container{Resources: holds("rdma/ib")}, list(verbs(1, "mlx5_1"), rdmaCM()), nil},
		"rule-replaces-selectors": {"A100",
			"{inject: {linkLayers: [InfiniBand]}, rules: [{match: {resources: [rdma/*]}, inject: {linkLayers: [], always: " +
				"true}}]}",
			Container{Resources: holds("rdma/ib")}, list(verbs(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"rule-selects-and-an-annotation-asks": {"A100",
			"{inject: {namespaces: [ml-*]}, rules: [{match: {namespaces: [ml-*]}, inject: {linkLayers: [Ethernet]}}]}",
			wanting("true"), list(verbs(2, "mlx5_bond_0"), rdmaCM()), nil},
		"always-and-less": {"A100",
			"{optIn: {resources: [rdma/*]}, rules: [{match: {namespaces: [net]}, inject: {always: true}}]}",
			Container{Namespace: "net", Annotations: podAnnotation("{devices: [mlx5_1]}"), Resources: holds("rdma/ib")},
			list(verbs(1, "mlx5_1"), rdmaCM()), nil},
		"broken-are-left-out": {"Broken", "inject: {namespaces: [ml-*], names: ['mlx5_*', 'node_is_l*']}", wanting("true"),
			list(verbs(0, "mlx5_0"), rdmaCM()),
			[]string{"HCAs are left out: node_is_link (/dev/infiniband/uverbs10 is a symbolic link, not a character device)"}},
	}
	nodes := testNodes(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := policyOf(t, test.config).Decide(test.container, nodes[test.node])
			if got.Grant == nil {
				t.Fatalf("no grant: %+v", got)
			}
			if diff := cmp.Diff(test.want, got.Grant.Devices); diff != "" {
				t.Errorf("devices differ (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wantWarnings, got.Warnings); diff != "" {
				t.Errorf("warnings differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLeftOut: what devices: all leaves out is said with its state, in each way that all HCAs are chosen, and nothing
// else is.
func TestLeftOut(t *testing.T) {
	n := hcatest.EightHCANode()
	n.HCAs = n.HCAs[:8]
	n.HCAs[6].Ports[0].State = "2: INIT"
	n.HCAs[7].Ports[0] = n.HCAs[7].Ports[0].Down()
	root := n.Files().Root(t)
	both := []string{"mlx5_6 (INIT)", "mlx5_7 (DOWN)"}
	for name, test := range map[string]struct {
		config, annotation string
		want               []string
		devices            int
	}{
		"all":                {"inject: {namespaces: [ml]}", "{devices: all}", both, 7},
		"true":               {"inject: {namespaces: [ml]}", "true", both, 7},
		"unasked":            {"optIn: {namespaces: [ml]}\nrules: [{match: {namespaces: [ml]}, inject: {always: true}}]", "{memlock: 1Gi}", both, 7},
		"by name":            {"inject: {namespaces: [ml]}", "{devices: [mlx5_0]}", nil, 2},
		"not selected":       {"inject: {namespaces: [ml], names: [mlx5_1]}", "true", nil, 2},
		"one that is left":   {"inject: {namespaces: [ml], names: [mlx5_5, mlx5_6]}", "true", both[:1], 2},
		"by NUMA node":       {"inject: {namespaces: [ml], numaNodes: [0]}", "true", nil, 5},
		"another link layer": {"inject: {namespaces: [ml], numaNodes: [0], linkLayers: [InfiniBand]}", "true", nil, 5},
	} {
		p, err := FromText([]byte(test.config))
		if err != nil {
			t.Fatal(err)
		}
		d := p.Decide(Container{Namespace: "ml", Name: "c", Annotations: podAnnotation(test.annotation)}, LiveFacts(root))
		if diff := cmp.Diff(test.want, d.LeftOut); diff != "" || d.Grant == nil || len(d.Grant.Devices) != test.devices {
			t.Errorf("%s: %+v, refusal %v; left out (-want +got):\n%s", name, d.Grant, d.Refusal, diff)
		}
	}
}
