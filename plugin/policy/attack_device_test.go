// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// deviceAttacks are made to have devices injected, or others than the policy means to give.
func deviceAttacks() []attack {
	const (
		fabric = "{optIn: {resources: [rdma/*]}, rules: [{match: {namespaces: [fabric]}, inject: {names: [mlx5_1], " +
			"management: true, always: true}}]}"
		anyHCA   = "{memlock: 1Gi, inject: {namespaces: [ml-*]}}"
		onlyThat = "{memlock: 1Gi, inject: {namespaces: [ml-*], names: [mlx5_1]}}"
		selects  = "{memlock: 1Gi, optIn: {resources: [rdma/*]}, inject: {namespaces: [ml-*]}, rules: [{match: " +
			"{namespaces: [web]}, inject: {names: [mlx5_1]}}]}"
	)
	one := little(verbs(1, "mlx5_1"), rdmaCM())
	inFabric := author("").with(func(c *subject) {
		c.Namespace, c.Annotations, c.Resources = "fabric",
			nil, kubeletHolds("rdma/ib")
	})
	taken := func(path, kind string, major, minor int64) subject {
		return author("true", gpu(0), deviceAt(path, kind, major, minor))
	}
	own := func(annotation string, devices ...Device) subject {
		return author("", devices...).with(func(c *subject) { c.Annotations = map[string]string{ownKey("c"): annotation} })
	}
	uverbs1 := "/dev/infiniband/uverbs1 c 0666 0 0 231 193"
	return []attack{
		// where nothing may be injected
		{guard: "inject-namespace", name: "hca-by-resource",
			container: guest("{devices: all}").with(func(c *subject) { c.Resources = kubeletHolds("rdma/ib") }),
			refused:   CauseNamespace, says: "but the policy does not allow devices to be injected"},
		{guard: "inject-namespace", name: "hca-by-name",
			container: guest("{devices: [mlx5_0]}").with(func(c *subject) { c.Resources = kubeletHolds("rdma/ib") }),
			refused:   CauseNamespace},
		{guard: "inject-namespace", name: "hcas-where-an-annotation-opts-in-alone",
			container: guest("{devices: all}").with(func(c *subject) { c.Namespace = "opt-a" }), refused: CauseNamespace},
		{guard: "inject-namespace", name: "hcas-of-a-rule-that-selects", config: selects,
			container: guest("{devices: all}").with(func(c *subject) { c.Resources = kubeletHolds("rdma/ib") }),
			refused:   CauseNamespace},
		{guard: "inject-unasked", name: "true-where-an-annotation-opts-in-alone",
			container: guest("true").with(func(c *subject) { c.Namespace = "opt-a" }), gets: little()},
		{guard: "inject-unasked", name: "resource-without-devices", gets: little(),
			container: guest("").with(func(c *subject) { c.Annotations, c.Resources = nil, kubeletHolds("rdma/ib") })},
		{guard: "inject-unasked", name: "resource-in-a-listed-namespace", gets: little(),
			container: author("").with(func(c *subject) { c.Annotations, c.Resources = nil, kubeletHolds("rdma/ib") })},

		// more than a device plugin has allotted
		{guard: "allotment", name: "device-and-true", container: author("true", heldVerbs(0)), gets: little()},
		{guard: "allotment", name: "device-and-all", container: author("{devices: all}", heldVerbs(0)), gets: little()},
		{guard: "allotment", name: "more-hcas-than-one-holds", container: guest("{devices: all}",
			heldVerbs(0)), gets: little()},
		{guard: "allotment", name: "device-of-ones-own-where-all-are-injected", config: fabric,
			container: inFabric.with(func(c *subject) { c.Devices = []Device{heldVerbs(0)} }), gets: unlimited()},
		{guard: "allotment", name: "vf-and-all", node: withFunctions, container: author("{devices: all}",
			heldVerbs(0)), gets: little()},
		{guard: "allotment", name: "all-though-one-holds-another", container: author("{devices: all}",
			heldVerbs(2)), gets: little()},
		{guard: "allotment", name: "device-that-does-not-count-as-a-signal",
			config: "{memlock: 1Gi, optIn: {devices: false}, inject: {namespaces: [ml-*]}}", container: author("true",
				heldVerbs(0)), gets: little()},
		{guard: "all-not-held", name: "all-for-one-container-that-holds-one", container: own("{devices: all}", heldVerbs(0)),
			refused: CauseCeiling, says: "the devices of mlx5_1 are not injected"},
		{guard: "all-not-held", name: "all-for-one-container-elsewhere", refused: CauseCeiling,
			container: own("{devices: all}", heldVerbs(2)).with(func(c *subject) { c.Namespace = "web" })},
		{guard: "not-held", name: "another-hca-than-the-one-held", container: author("{devices: [mlx5_1]}", heldVerbs(0)),
			refused: CauseCeiling, says: "which cannot be injected because the container already has other verbs devices"},
		{guard: "not-held", name: "another-hca-beside-the-one-held", container: author("{devices: [mlx5_0, mlx5_1]}",
			heldVerbs(0)), refused: CauseCeiling, says: `HCA "mlx5_1"`},
		{guard: "not-held", name: "hca-by-name-elsewhere", container: guest("{devices: [mlx5_0]}",
			heldVerbs(1)), refused: CauseCeiling},
		{guard: "not-held", name: "hca-that-is-not-there-beside-one-that-is-held", container: author("{devices: [mlx5_9]}",
			heldVerbs(0)), refused: CauseCeiling},
		{guard: "allotment", name: "the-hca-that-one-holds", container: guest("{devices: [mlx5_1]}",
			heldVerbs(1)), gets: little()},
		{guard: "unknown", name: "allotment-that-cannot-be-seen", node: unknownNumber, container: author("true", gpu(0)),
			refused: CauseHCA, says: "cannot determine whether"},
		{guard: "unknown", name: "allotment-that-cannot-be-seen-and-a-name", node: unknownNumber,
			container: author("{devices: [mlx5_1]}", gpu(0)), refused: CauseHCA},

		// functions that belong to other pods
		{guard: "functions", name: "virtual-function-among-all", config: anyHCA, node: withFunctions,
			container: author("{devices: all}"), gets: little(verbs(2, "mlx5_bond_0"), rdmaCM())},
		{guard: "functions", name: "virtual-functions-by-true", config: anyHCA, node: withFunctions,
			container: author("true"), gets: little(verbs(2, "mlx5_bond_0"), rdmaCM())},
		{guard: "functions", name: "virtual-function-by-name", config: anyHCA, node: withFunctions,
			container: author("{devices: [mlx5_1]}"), refused: CauseCeiling, says: "exclude"},
		{guard: "functions", name: "scalable-function-by-name", config: anyHCA, node: withFunctions,
			container: author("{devices: [mlx5_0]}"), refused: CauseCeiling, says: "exclude"},
		{guard: "functions", name: "virtual-functions-by-a-rule",
			config: "{optIn: {resources: [rdma/*]}, rules: [{match: {namespaces: [fabric]}, inject: {always: true}}]}",
			node:   withFunctions, container: inFabric, gets: unlimited(verbs(2, "mlx5_bond_0"), rdmaCM())},

		// HCAs that cannot be opened, or of which nothing is known
		{guard: "netns-exclusive", name: "hcas-of-the-hosts-network-namespace", node: exclusive, container: author("true"),
			refused: CauseNoSuchHCA, says: "netns_mode is exclusive"},
		{guard: "netns-exclusive", name: "hca-of-the-hosts-network-namespace-by-name", node: exclusive,
			container: author("{devices: [mlx5_1]}"), refused: CauseNoSuchHCA, says: "hostNetwork: true"},
		{guard: "netns-exclusive", name: "hcas-of-the-hosts-network-namespace-unasked", config: fabric, node: exclusive,
			container: inFabric, gets: unlimited()},
		{guard: "unread", name: "hca-that-never-answered-among-all", config: anyHCA, node: unread,
			container: author("{devices: all}"), refused: CauseHCA, says: "HCA mlx5_0"},
		{guard: "unread", name: "hca-that-never-answered-by-true", config: anyHCA, node: unread,
			container: author("true"), refused: CauseHCA},
		{guard: "named-broken-hca", name: "hca-that-never-answered-by-name", config: anyHCA, node: unread,
			container: author("{devices: [mlx5_0]}"), refused: CauseHCA, says: "its port 1 does not answer"},

		// HCAs that the inventory remembers and the node no longer has
		{guard: "place", name: "hca-that-is-gone-by-name", node: stale(moved(hca.Device{}, nil)),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "changed after they were read"},
		{guard: "place", name: "hcas-that-are-gone", node: stale(moved(hca.Device{}, nil)), container: author("true"),
			refused: CauseHCA, says: "changed after they were read"},
		{guard: "place", name: "hca-that-may-be-gone", node: stale(moved(hca.Device{}, errors.New("input/output error"))),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "changed after they were read"},
		{guard: "place", name: "number-of-another-hca", node: stale(moved(hca.Device{Place: "there/uverbs1"}, nil)),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "changed after they were read"},
		{guard: "place", name: "number-of-another-hca-since-a-silent-one-was-read", says: "changed after they were read", refused: CauseHCA,
			node: moved(hca.Device{Place: "there/uverbs1"}, nil), container: author("{devices: [mlx5_1]}")},
		{guard: "place-unknown", name: "hca-on-a-bus-with-others-that-may-be-gone", refused: CauseHCA, says: "changed after they were read",
			node: stale(changed(func(*hca.Inventory) {})), container: author("{devices: [mlx5_1]}")},
		{guard: "moved-again", name: "number-of-another-hca-again", refused: CauseHCA, says: "keep changing",
			node: again(stale(moved(hca.Device{Place: "there/uverbs1"}, nil))), container: author("{devices: [mlx5_1]}")},
		{guard: "moved-again", name: "numbers-that-cannot-be-looked-up", refused: CauseHCA, says: "input/output error",
			node: again(moved(hca.Device{}, errors.New("input/output error"))), container: author("true")},

		// others than those that may
		{guard: "selectors", name: "all-of-them", container: author("{devices: all}"), gets: one},
		{guard: "named-selectors", name: "storage-hca-by-name", container: author("{devices: [mlx5_bond_0]}"),
			refused: CauseCeiling, says: "exclude"},
		{guard: "named-selectors", name: "storage-hca-among-others",
			container: author("{devices: [mlx5_1, mlx5_bond_0]}"), refused: CauseCeiling},
		{guard: "hca-found", name: "hca-that-is-not-there", container: author("{devices: [mlx5_9]}"),
			refused: CauseNoSuchHCA, says: "does not have"},
		{guard: "hca-found", name: "hca-called-all", container: author("{devices: [all]}"),
			refused: CauseNoSuchHCA, says: "does not have"},
		{guard: "hca-found", name: "hca-in-capitals", container: author("{devices: [MLX5_1]}"),
			refused: CauseNoSuchHCA, says: "does not have"},
		{guard: "hca-found", name: "device-for-an-hca", container: author("{devices: [umad1]}"),
			refused: CauseNoSuchHCA, says: "does not have"},
		{guard: "hca-twice", name: "hca-twice", container: author("{devices: [mlx5_1, mlx5_1]}"), gets: one},
		{guard: "list-length", name: "node-of-long-names", node: longNames, container: author("{devices: [x]}"),
			refused: CauseNoSuchHCA, says: "84 more"},
		{guard: "management", name: "umad-by-annotation", container: author("true"), gets: one},
		{guard: "management", name: "umad-though-one-holds-it", container: author("true",
			deviceAt("/dev/infiniband/umad1", "c", 231, 1)), gets: one},

		// by what lies at the node's paths
		{guard: "broken-hca", name: "link-for-the-only-device", config: onlyThat,
			node:      nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.Link("umad1")}),
			container: author("true"), refused: CauseHCA, says: "symbolic link"},
		{guard: "named-broken-hca", name: "link-for-a-device-by-name",
			node:      nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.Link("/dev/sda")}),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "symbolic link"},
		{guard: "only character devices", name: "block-device-on-the-node", node: nodeWithRow(uverbs1,
			"/dev/infiniband/uverbs1 b 0666 0 0 231 193"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "block device"},
		{guard: "only character devices", name: "pipe-on-the-node", config: anyHCA,
			node:      nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.FIFO}),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "FIFO"},
		{guard: "the number of sysfs", name: "disk-on-the-node", node: nodeWithRow(uverbs1,
			"/dev/infiniband/uverbs1 c 0666 0 0 8 0"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "in sysfs is 231:193"},
		{guard: "the number of sysfs", name: "umad-in-place-of-verbs-on-the-node", node: nodeWithRow(uverbs1,
			"/dev/infiniband/uverbs1 c 0666 0 0 231 1"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "in sysfs is 231:193"},

		// by what lies at the container's paths
		{guard: "path-taken", name: "block-device-at-the-path", container: taken("/dev/infiniband/uverbs1", "b", 231, 193),
			refused: CauseDevicePath},
		{guard: "path-taken", name: "umad-at-the-path", container: taken("/dev/infiniband/uverbs1", "c", 231, 1),
			refused: CauseDevicePath},
		{guard: "path-taken", name: "block-device-at-the-path-with-dots",
			container: taken("/dev/../dev//infiniband/./uverbs1", "b", 8, 0), refused: CauseDevicePath},
		{guard: "path-taken", name: "null-device-for-rdma-cm", container: taken("/dev/infiniband/rdma_cm", "c", 1, 3),
			refused: CauseDevicePath},
	}
}

// longNames is a node of 100 HCAs with the longest names that there are.
func longNames(testing.TB) Facts {
	var n hca.Inventory
	for i := range 100 {
		n.HCAs = append(n.HCAs, hca.HCA{Name: fmt.Sprintf("%s%03d", strings.Repeat("x", 60), i),
			Ports: []hca.Port{{State: hca.StateActive}}})
	}
	return fixed(&n)
}

// withFunctions is A100 where mlx5_0 is a scalable function of mlx5_bond_0's card and mlx5_1 a virtual one, both up.
func withFunctions(t testing.TB) Facts {
	return changed(func(n *hca.Inventory) {
		n.HCAs[0].Function, n.HCAs[0].Parent = hca.FunctionScalable, n.HCAs[2].PCI
		n.HCAs[0].Ports[0].State = hca.StateActive
		n.HCAs[1].Function, n.HCAs[1].Parent = hca.FunctionVirtual, n.HCAs[2].PCI
	})(t)
}

// exclusive is A100 in exclusive netns mode.
func exclusive(t testing.TB) Facts {
	return changed(func(n *hca.Inventory) { n.NetNSExclusive = true })(t)
}

// unread is A100 where mlx5_0 has never answered.
func unread(t testing.TB) Facts {
	return changed(func(n *hca.Inventory) { n.HCAs[0].Ports, n.HCAs[0].Unread = nil, "its port 1 does not answer" })(t)
}

// unknownNumber is A100 where the number of a GPU cannot be looked up.
func unknownNumber(t testing.TB) Facts {
	n := changed(func(*hca.Inventory) {})(t)
	verbs := n.Verbs
	n.Verbs = func(number hca.Number) (hca.Device, bool, error) {
		if number == gpu(0).number() {
			return hca.Device{}, false, errors.New("read sys/dev/char/195:0: input/output error")
		}
		return verbs(number)
	}
	return n
}

// configAttacks are policies that would let pod authors in unseen.
func configAttacks() []attack {
	trap := func(guard, name, says, config string) attack {
		return attack{guard: guard, name: name, config: config, badConfig: true, says: says}
	}
	return []attack{
		trap("match-nothing", "rule-for-all", "neither match.namespaces nor match.resources",
			"rules: [{memlock: unlimited}]"),
		trap("match-nothing", "rule-for-all-that-injects", "neither match.namespaces nor match.resources",
			"rules: [{match: {}, inject: {always: true}}]"),
		trap("match-empty", "rule-for-no-namespace", "would match everything",
			"rules: [{match: {namespaces: [], resources: [rdma/*]}, inject: {always: true}}]"),
		trap("match-empty", "rule-for-no-resource", "would match everything",
			"rules: [{match: {namespaces: [a], resources: []}}]"),
		trap("rule-shadowed", "limit-behind-a-rule-for-all-namespaces", "can never match, because rules[0]",
			"rules: [{match: {namespaces: ['*']}}, {match: {namespaces: [guest]}, memlock: 1Mi}]"),
		trap("rule-shadowed", "limit-behind-a-rule-without-resources", "can never match",
			"rules: [{match: {namespaces: [ml-*]}}, {match: {namespaces: [ml-a*], resources: [rdma/a]}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-all-but-a-namespace", "matches nothing",
			"rules: [{match: {namespaces: ['!infra']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-a-regular-expression", "matches nothing",
			"rules: [{match: {namespaces: ['guest-.*']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-a-brace", "matches nothing",
			"rules: [{match: {namespaces: ['guest-{a,b}']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-a-namespace-in-capitals", "matches nothing",
			"rules: [{match: {namespaces: ['Guest-*']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-a-look-alike", "matches nothing",
			"rules: [{match: {namespaces: ['gu\u0435st']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-a-domain-in-capitals", "matches nothing",
			"rules: [{match: {resources: ['RDMA/*']}, memlock: 1Mi}]"),
		trap("glob-form", "limit-for-one-resource-or-another", "matches nothing",
			"rules: [{match: {resources: ['rdma/a|b']}, memlock: 1Mi}]"),
		trap("management-scope", "management-by-resource", "limit the rule with match.namespaces",
			"rules: [{match: {resources: [rdma/*]}, inject: {management: true}}]"),
		trap("management-general", "management-for-all", "only a rule with match.namespaces", "inject: {management: "+
			"true}"),
		trap("yaml-documents", "rule-in-a-second-document", "text after the end of the YAML document",
			"memlock: unlimited\n---\nrules: [{match: {namespaces: [a]}, memlock: 1Mi}]"),
		trap("unknown-key", "memlock-misspelt", "rules[0].memlok", "rules: [{memlok: 1Mi, match: {namespaces: [guest]}}]"),
		trap("unknown-key", "deny", "rules[0].deny", "rules: [{deny: true, match: {namespaces: [guest]}}]"),
		trap("unknown-key", "match-by-labels", "rules[0].match.labels",
			"rules: [{match: {namespaces: [a], labels: {rdma: yes-please}}}]"),
		trap("unknown-key", "namespaces-of-a-rules-injection", "rules[0].inject.namespaces",
			"rules: [{match: {resources: [rdma/*]}, inject: {namespaces: ['*']}}]"),
		trap("unknown-key", "always-for-everybody", "inject.always", "inject: {always: true}"),
		trap("no-value", "namespaces-left-empty", "rules[0].match.namespaces has no value",
			"rules: [{match: {resources: [rdma/*], namespaces: }, memlock: unlimited}]"),
		trap("key-twice", "rules-twice", "already set", "rules: [{match: {namespaces: [a]}, memlock: 1Mi}]\nrules: []"),
	}
}

// stale has an inventory that is older than a change of its devices.
func stale(read func(testing.TB) Facts) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		node := read(t)
		readHCAs := node.HCAs
		node.HCAs = func() (*hca.Inventory, bool, error) {
			n, _, err := readHCAs()
			return n, true, err
		}
		return node
	}
}

// moved is A100 with devices at places. The kernel says this of the number of each.
func moved(now hca.Device, err error) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		node := changed(func(n *hca.Inventory) {
			n.RDMACM.Place = "here/rdma_cm"
			for _, h := range n.HCAs {
				for i := range h.Devices {
					h.Devices[i].Place = "here/" + h.Name
				}
			}
		})(t)
		node.Verbs = func(hca.Number) (hca.Device, bool, error) { return now, now.Place != "", err }
		return node
	}
}

// again has the same inventory when it is read again.
func again(first func(testing.TB) Facts) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		node := first(t)
		node.ReadAgain = node.HCAs
		return node
	}
}
