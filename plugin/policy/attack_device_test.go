// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// deviceAttacks are made to have devices injected, or others than the policy means to give.
func deviceAttacks() []attack {
	const (
		fabric   = "{optIn: {resources: [rdma/*]}, rules: [{match: {namespaces: [fabric]}, devices: {names: [mlx5_1], management: true}}]}"
		anyHCA   = "{memlock: 1Gi, optIn: {annotation: {namespaces: [ml-*]}}}"
		onlyThat = "{memlock: 1Gi, optIn: {annotation: {namespaces: [ml-*]}}, devices: {names: [mlx5_1]}}"
	)
	one := little(verbs(1, "mlx5_1"), rdmaCM())
	inFabric := author("").with(func(c *Container) { c.Namespace, c.Annotations, c.Resources = "fabric", nil, holds("rdma/ib") })
	taken := func(path, kind string, major, minor int64) Container {
		return author("true", gpu(0), Device{Path: path, Type: kind, Major: major, Minor: minor})
	}
	uverbs1 := "/dev/infiniband/uverbs1 c 0666 0 0 231 193"
	return []attack{
		// where nothing may be injected
		{guard: "inject-namespace", name: "more-hcas-than-one-holds", container: guest("{devices: all}", heldVerbs(1)), refused: CauseNamespace, says: "may not have any injected"},
		{guard: "inject-namespace", name: "hca-by-name", container: guest("{devices: [mlx5_0]}", heldVerbs(1)), refused: CauseNamespace},
		{guard: "inject-namespace", name: "the-hca-that-one-holds", container: guest("{devices: [mlx5_1]}", heldVerbs(1)), refused: CauseNamespace},
		{guard: "inject-namespace", name: "hca-by-resource", container: guest("{devices: all}").with(func(c *Container) { c.Resources = holds("rdma/ib") }), refused: CauseNamespace},
		{guard: "inject-unasked", name: "resource-without-devices", gets: little(),
			container: guest("").with(func(c *Container) { c.Annotations, c.Resources = nil, holds("rdma/ib") })},
		{guard: "inject-unasked", name: "device-and-true", container: guest("true", heldVerbs(1)), gets: little()},

		// others than those that may
		{guard: "selectors", name: "all-of-them", container: author("{devices: all}"), gets: one},
		{guard: "selectors", name: "all-though-one-holds-another", container: author("{devices: all}", heldVerbs(2)), gets: one},
		{guard: "named-selectors", name: "storage-hca-by-name", container: author("{devices: [mlx5_bond_0]}"), refused: CauseCeiling, says: "do not pass"},
		{guard: "named-selectors", name: "storage-hca-among-others", container: author("{devices: [mlx5_1, mlx5_bond_0]}"), refused: CauseCeiling},
		{guard: "hca-found", name: "hca-that-is-not-there", container: author("{devices: [mlx5_9]}"), refused: CauseHCA, says: "does not have"},
		{guard: "hca-found", name: "hca-called-all", container: author("{devices: [all]}"), refused: CauseHCA},
		{guard: "hca-found", name: "hca-in-capitals", container: author("{devices: [MLX5_1]}"), refused: CauseHCA},
		{guard: "hca-found", name: "device-for-an-hca", container: author("{devices: [umad1]}"), refused: CauseHCA},
		{guard: "hca-twice", name: "hca-twice", container: author("{devices: [mlx5_1, mlx5_1]}"), gets: one},
		{guard: "list-length", name: "node-of-long-names", node: longNames, container: author("{devices: [x]}"), refused: CauseHCA, says: "84 more"},
		{guard: "management", name: "umad-by-annotation", container: author("true"), gets: one},
		{guard: "management", name: "umad-though-one-holds-it", container: author("true", Device{Path: "/dev/infiniband/umad1", Type: "c", Major: 231, Minor: 1}), gets: one},

		// by what lies at the node's paths
		{guard: "broken-hca", name: "link-for-the-only-device", config: onlyThat, node: nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.Link("umad1")}),
			container: author("true"), refused: CauseHCA, says: "symbolic link"},
		{guard: "named-broken-hca", name: "link-for-a-device-by-name", node: nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.Link("/dev/sda")}),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "symbolic link"},
		{guard: "device-problem", name: "link-for-a-management-device", config: fabric, node: nodeWith(hcatest.Files{"dev/infiniband/issm1": hcatest.Link("/dev/sda")}),
			container: inFabric, gets: unlimited(verbs(1, "mlx5_1"), umad(1, "mlx5_1"), rdmaCM())},
		{guard: "rdma-cm-problem", name: "link-for-rdma-cm", node: nodeWith(hcatest.Files{"dev/infiniband/rdma_cm": hcatest.Link("/dev/sda")}),
			container: author("true"), gets: little(verbs(1, "mlx5_1"))},
		{guard: "only character devices", name: "block-device-on-the-node", node: nodeWithRow(uverbs1, "/dev/infiniband/uverbs1 b 0666 0 0 231 193"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "block device"},
		{guard: "only character devices", name: "pipe-on-the-node", config: anyHCA, node: nodeWith(hcatest.Files{"dev/infiniband/uverbs1": hcatest.FIFO}),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "FIFO"},
		{guard: "the number of sysfs", name: "disk-on-the-node", node: nodeWithRow(uverbs1, "/dev/infiniband/uverbs1 c 0666 0 0 8 0"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "sysfs says 231:193"},
		{guard: "the number of sysfs", name: "umad-in-place-of-verbs-on-the-node", node: nodeWithRow(uverbs1, "/dev/infiniband/uverbs1 c 0666 0 0 231 1"),
			container: author("{devices: [mlx5_1]}"), refused: CauseHCA, says: "sysfs says 231:193"},

		// by what lies at the container's paths
		{guard: "path-taken", name: "block-device-at-the-path", container: taken("/dev/infiniband/uverbs1", "b", 231, 193), refused: CauseDevicePath},
		{guard: "path-taken", name: "umad-at-the-path", container: taken("/dev/infiniband/uverbs1", "c", 231, 1), refused: CauseDevicePath},
		{guard: "path-taken", name: "block-device-at-the-path-with-dots", container: taken("/dev/../dev//infiniband/./uverbs1", "b", 8, 0), refused: CauseDevicePath},
		{guard: "path-taken", name: "null-device-for-rdma-cm", container: taken("/dev/infiniband/rdma_cm", "c", 1, 3), refused: CauseDevicePath},
	}
}

// longNames is a node of 100 HCAs with the longest names that there are.
func longNames(testing.TB) Node {
	var n hca.Node
	for i := range 100 {
		n.HCAs = append(n.HCAs, hca.HCA{Name: fmt.Sprintf("%s%03d", strings.Repeat("x", 60), i), Ports: []hca.Port{{State: hca.StateActive}}})
	}
	return Node{
		Verbs: func(hca.Number) (hca.Device, bool, error) { return hca.Device{}, false, nil },
		HCAs:  func() (*hca.Node, error) { return &n, nil },
	}
}

// configAttacks are policies that would let pod authors in unseen.
func configAttacks() []attack {
	trap := func(guard, name, says, config string) attack {
		return attack{guard: guard, name: name, config: config, badConfig: true, says: says}
	}
	return []attack{
		trap("grant-scope", "grant-by-a-label-alone", "chosen by the pod's author", "rules: [{match: {labels: {rdma: yes-please}}, memlock: unlimited}]"),
		trap("grant-scope", "grant-by-a-handler-alone", "chosen by the pod's author", "rules: [{match: {runtimeHandlers: [nvidia]}, devices: {}}]"),
		trap("management-scope", "management-by-resource", "say in match.namespaces", "rules: [{match: {resources: [rdma/*]}, devices: {management: true}}]"),
		trap("management-general", "management-for-all", "never to everybody", "devices: {management: true}"),
		trap("yaml-documents", "deny-in-a-second-document", "something follows", "memlock: 1Gi\n---\nrules: [{deny: true}]"),
		trap("unknown-key", "deny-misspelt", "rules[0].denny", "rules: [{denny: true, match: {namespaces: [guest]}}]"),
		trap("no-value", "namespaces-left-empty", "rules[0].match.namespaces has no value", "rules: [{match: {resources: [rdma/*], namespaces: }, memlock: unlimited}]"),
		trap("key-twice", "rules-twice", "already set", "rules: [{deny: true}]\nrules: []"),
	}
}
