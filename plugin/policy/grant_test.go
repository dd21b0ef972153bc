// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// asking is a container that holds a verbs device, with an annotation, 2Gi of memory, in a namespace that is not
// listed.
func asking(annotation string) subject {
	c := subject{Container: Container{Namespace: "guest", Devices: []Device{heldVerbs(0)}, MemoryLimit: 2 << 30}}
	if annotation != "" {
		c.Annotations = podAnnotation(annotation)
	}
	return c
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
	node := node(t, "V100")
	for _, test := range tests {
		t.Run(test.config+" "+test.annotation, func(t *testing.T) {
			got := policyOf(t, test.config).decide(asking(test.annotation), node)
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
	node := node(t, "V100")
	for _, ipcLock := range []string{"true", "false", "requested", "always"} {
		for _, memlock := range []string{"unlimited", "1Gi", "memory-limit", "unchanged"} {
			p := policyOf(t, fmt.Sprintf("{ipcLock: false, rules: [{match: {namespaces: ['*']}, memlock: %s, ipcLock: %s}]}",
				memlock, ipcLock))
			for _, annotation := range []string{"", "{ipcLock: true}", "{ipcLock: false}", "{memlock: 64Ki}",
				"{memlock: 64Ki, ipcLock: true}"} {
				fmt.Fprintf(&got, "ipcLock %s, memlock %s, annotation %s: ", ipcLock, memlock, annotation)
				switch d := p.decide(asking(annotation), node); {
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

// Devices: what is injected, on nodes of each kind.
func TestDevices(t *testing.T) {
	const (
		managing = "{optIn: {resources: [rdma/*]}, rules: [{name: fabric, match: {namespaces: [net]}, inject: " +
			"{management: true, always: true}}]}"
		always     = "{optIn: {resources: [rdma/*]}, rules: [{match: {namespaces: [net]}, inject: {always: true}}]}"
		everything = "inject: {namespaces: [ml-*], functions: [physical, virtual, scalable]}"
		down       = "the container gets HCAs without an ACTIVE port, because it requests them: mlx5_0"
		physical   = "the container gets physical functions whose virtual or scalable functions might belong to other " +
			"pods: mlx5_bond_0"
		manages = `rule "fabric" grants the management devices of %s, so the container can disrupt the whole fabric`
	)
	list := func(devices ...hca.Device) []hca.Device { return devices }
	selecting := func(selectors string) string { return "inject: {namespaces: [ml-*], " + selectors + "}" }
	allotted := func(value string) subject {
		return askedFor("net", kubeletHolds("rdma/ib")).with(func(c *subject) { c.Annotations = podAnnotation(value) })
	}
	own := func(value string, devices ...Device) subject {
		return subject{Container: Container{Namespace: "ml-a", Name: "c", Annotations: map[string]string{ownKey("c"): value}, Devices: devices}}
	}
	ignored := func(hcas string) string {
		return "the pod's annotation requests all HCAs, but the container already has verbs devices, so the devices of " +
			hcas + " are not injected: request devices only for the containers that need them, with the annotation " +
			AnnotationKey +
			"/container.NAME"
	}
	unlistedHCAs := func(t testing.TB) Facts {
		facts := node(t, "A100")
		facts.HCAs = unreadable(t).HCAs
		return facts
	}
	at := func(name string) func(testing.TB) Facts { return func(t testing.TB) Facts { return node(t, name) } }
	a100, asking := at("A100"), annotated("ml-a", "true")
	two := list(verbs(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), rdmaCM())
	first, second := list(verbs(0, "mlx5_0"), rdmaCM()), list(verbs(1, "mlx5_1"), rdmaCM())
	bond := list(verbs(2, "mlx5_bond_0"), rdmaCM())
	for name, test := range map[string]struct {
		node         func(testing.TB) Facts
		config       string
		container    subject
		want         []hca.Device
		wantWarnings []string
	}{
		"all-active":        {a100, listed, asking, two, nil},
		"all-asked-for":     {a100, listed, annotated("ml-a", "{devices: all}"), two, nil},
		"none":              {a100, listed, annotated("ml-a", "{devices: none}"), nil, nil},
		"named":             {a100, listed, annotated("ml-a", "{devices: [mlx5_bond_0]}"), bond, nil},
		"named-though-down": {a100, listed, annotated("ml-a", "{devices: [mlx5_0]}"), first, []string{down}},
		"named-renamed": {at("Renamed"), listed, annotated("ml-a", "{devices: [ibp12s0]}"),
			list(verbs(1, "ibp12s0"), rdmaCM()), nil},
		"holds-two-asks-for-one": {a100, listed, annotated("ml-a", "{devices: [mlx5_1]}", heldVerbs(0),
			heldVerbs(1)), nil, nil},
		"holds-one-pod-asks-for-all": {a100, listed, annotated("ml-a", "{devices: all}", heldVerbs(1)), nil,
			[]string{ignored("mlx5_bond_0")}},
		"holds-one-unlisted-pod-asks-for-all": {a100, "{}", annotated("web", "{devices: all}", heldVerbs(0)), nil,
			[]string{ignored("mlx5_1, mlx5_bond_0")}},
		"holds-one-of-unread-ones-pod-asks-for-all": {unlistedHCAs, listed, annotated("ml-a", "{devices: all}", heldVerbs(1)),
			nil, []string{"the pod's annotation requests all HCAs, but the container already has verbs " +
				"devices, so no devices are injected"}},
		"holds-all-that-all-means": {a100, selecting("names: [mlx5_1]"), own("{devices: all}", heldVerbs(1)), nil, nil},
		"holds-all-that-is-active": {a100, listed, own("{devices: all}", heldVerbs(1), heldVerbs(2)), nil, nil},
		"all-that-the-policy-injected": {a100, listed, own("{devices: all}", heldVerbs(1)).with(func(c *subject) {
			c.Injected = true
		}), nil, nil},
		"holds-another-at-dev-null": {a100, listed, annotated("ml-a", "true", Device{Path: "/dev/null", Type: "c", Major: 1,
			Minor: 3}), two, nil},
		"by-name": {at("EightHCA"), selecting("names: ['mlx5_[0-1]']"), asking,
			list(verbs(0, "mlx5_0"), verbs(1, "mlx5_1"), rdmaCM()), nil},
		"by-link-layer": {a100, selecting("linkLayers: [Ethernet]"), asking, bond, nil},
		"by-netdev":     {a100, selecting("netdevs: [bond*]"), asking, bond, nil},
		"by-numa-node":  {at("V100"), selecting("numaNodes: [1]"), asking, second, nil},
		"soft-hcas-by-numa-node": {at("SoftRoCE"), selecting("numaNodes: [-1]"), asking,
			list(verbs(0, "rxe0"), verbs(1, "rxe1"), rdmaCM()), nil},
		"no-rdma-cm": {at("NoRDMACM"), listed, asking, list(verbs(0, "mlx5_0"), verbs(1, "mlx5_1")),
			[]string{"the node has no usable /dev/infiniband/rdma_cm, so RDMA_CM connections will fail: " +
				"to load the kernel module, run modprobe rdma_ucm"}},
		"efa-needs-no-rdma-cm": {at("EFA"), listed, asking, list(verbs(0, "efa_0"), verbs(1, "rdmap144s27")), nil},
		"management": {a100, managing, askedFor("net", kubeletHolds("rdma/ib")), list(verbs(1, "mlx5_1"), umad(1, "mlx5_1"),
			issm(1, "mlx5_1"), verbs(2, "mlx5_bond_0"), umad(2, "mlx5_bond_0"), issm(2, "mlx5_bond_0"), rdmaCM()),
			[]string{fmt.Sprintf(manages, "mlx5_1, mlx5_bond_0")}},
		"management-less": {a100, managing, allotted("{devices: [mlx5_0]}"), list(verbs(0, "mlx5_0"), umad(0, "mlx5_0"),
			issm(0, "mlx5_0"), rdmaCM()), []string{down, fmt.Sprintf(manages, "mlx5_0")}},
		"rule-and-none": {a100, managing, allotted("{devices: none}"), nil, nil},
		"rule-leaves-selectors-to-the-general-ones": {a100,
			"{inject: {linkLayers: [InfiniBand]}, rules: [{match: {resources: [rdma/*]}, inject: {netdevs: [], always: true}}]}",
			askedFor("", kubeletHolds("rdma/ib")), second, nil},
		"rule-replaces-selectors": {a100,
			"{inject: {linkLayers: [InfiniBand]}, rules: [{match: {resources: [rdma/*]}, inject: {linkLayers: [], always: " +
				"true}}]}",
			askedFor("", kubeletHolds("rdma/ib")), two, nil},
		"rule-selects-and-an-annotation-asks": {a100,
			"{inject: {namespaces: [ml-*]}, rules: [{match: {namespaces: [ml-*]}, inject: {linkLayers: [Ethernet]}}]}",
			asking, bond, nil},
		"always-and-less": {a100, always, allotted("{devices: [mlx5_1]}"), second, nil},
		"broken-are-left-out": {at("Broken"), selecting("names: ['mlx5_*', 'node_is_l*']"), asking, first,
			[]string{"HCAs are not injected: node_is_link (/dev/infiniband/uverbs10 is a symbolic link, not a character device)"}},

		// functions of one card, exclusive netns mode, and an HCA that never answered
		"physical":              {withFunctions, listed, asking, bond, []string{physical}},
		"virtual":               {withFunctions, selecting("functions: [virtual]"), asking, second, nil},
		"scalable":              {withFunctions, selecting("functions: [scalable]"), asking, first, nil},
		"all of them":           {withFunctions, everything, asking, slices.Concat(first[:1], two), []string{physical}},
		"a virtual one by name": {withFunctions, everything, annotated("ml-a", "{devices: [mlx5_1]}"), second, nil},
		"host network in exclusive mode": {exclusive, listed,
			asking.with(func(c *subject) { c.HostNetwork = true }), two, nil},
		"unasked in exclusive mode": {exclusive, always, askedFor("net", kubeletHolds("rdma/ib")), nil,
			[]string{"no HCAs are injected: each RDMA device on this node belongs to one network namespace " +
				"(netns_mode is exclusive), so the container cannot use the host's HCAs"}},
		"another HCA never answered": {unread, selecting("names: [mlx5_1]"), asking, second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := policyOf(t, test.config).decide(test.container, test.node(t))
			if got.Grant == nil {
				t.Fatalf("no grant: %+v", got)
			}
			expect.Equal(t, "devices", test.want, got.Grant.Devices)
			expect.Equal(t, "warnings", test.wantWarnings, got.Warnings)
		})
	}
}

// TestLeftOut: what devices: all leaves out is said with its state or its purpose, in each way that all HCAs are chosen, and nothing
// else is.
func TestLeftOut(t *testing.T) {
	n := hcatest.EightHCANode()
	n.HCAs = n.HCAs[:8]
	n.HCAs[4].Ports[0].LinkLayer, n.HCAs[4].Ports[0].RawPackets = "Ethernet", true
	n.HCAs[6].Ports[0].State = "2: INIT"
	n.HCAs[7].Ports[0] = n.HCAs[7].Ports[0].Down()
	root := n.Files().Root(t)
	three := []string{"mlx5_4 (for raw packets)", "mlx5_6 (INIT)", "mlx5_7 (DOWN)"}
	for name, test := range map[string]struct {
		config, annotation string
		want               []string
		devices            int
	}{
		"all":                 {"inject: {namespaces: [ml]}", "{devices: all}", three, 6},
		"true":                {"inject: {namespaces: [ml]}", "true", three, 6},
		"unasked":             {"optIn: {namespaces: [ml]}\nrules: [{match: {namespaces: [ml]}, inject: {always: true}}]", "{memlock: 1Gi}", three, 6},
		"by name":             {"inject: {namespaces: [ml]}", "{devices: [mlx5_0]}", nil, 2},
		"not selected":        {"inject: {namespaces: [ml], names: [mlx5_1]}", "true", nil, 2},
		"one that is left":    {"inject: {namespaces: [ml], names: [mlx5_4, mlx5_5]}", "true", three[:1], 2},
		"raw packets by name": {"inject: {namespaces: [ml]}", "{devices: [mlx5_4]}", nil, 2},
		"by NUMA node":        {"inject: {namespaces: [ml], numaNodes: [0]}", "true", nil, 5},
		"another link layer":  {"inject: {namespaces: [ml], numaNodes: [0], linkLayers: [InfiniBand]}", "true", nil, 5},
	} {
		p, err := FromText([]byte(test.config))
		must.Succeed(t, err)
		d := p.decide(subject{Container: Container{Namespace: "ml", Name: "c", Annotations: podAnnotation(test.annotation)}}, LiveFacts(root))
		if diff := cmp.Diff(test.want, d.LeftOut); diff != "" || d.Grant == nil || len(d.Grant.Devices) != test.devices {
			t.Errorf("%s: %+v, refusal %v; left out (-want +got):\n%s", name, d.Grant, d.Refusal, diff)
		}
	}
}

// Under a runtime that may not raise limits, what the policy gives is cut to what can start, and said. IPC_LOCK is what
// it is beside the policy's own memlock.
func TestStartable(t *testing.T) {
	holder := holding(heldVerbs(0))
	for name, test := range map[string]struct {
		config string
		most   spec.Limit // 0: unknown
		want   *spec.Grant
		warns  bool
	}{
		"unknown":           {"", 0, unlimited(), false},
		"it may raise them": {"", spec.Unlimited, unlimited(), false},
		"cut":               {"", 8 << 20, &spec.Grant{Memlock: 8 << 20, IPCLock: spec.IPCLockUnlessDropped}, true},
		"a number is cut":   {"memlock: 1Gi", 8 << 20, &spec.Grant{Memlock: 8 << 20}, true},
		"a number fits":     {"memlock: 1Gi", 1 << 30, &spec.Grant{Memlock: 1 << 30}, false},
		"left unchanged":    {"rules: [{match: {namespaces: ['*']}, memlock: unchanged}]", 8 << 20, &spec.Grant{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := policyOf(t, test.config).decide(holder, startable(test.most)(t))
			if diff := cmp.Diff(test.want, d.Grant); diff != "" || (len(d.Warnings) > 0) != test.warns {
				t.Errorf("warnings %q, refusal %v (-want +got):\n%s", d.Warnings, d.Refusal, diff)
			}
		})
	}
}
