// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// SyntheticNode returns a synthetic node with HCAs of the given names, in the same order. All HCAs are usable and
// ACTIVE physical functions. Each HCA has a port of each link layer, but no netdevs and no NUMA node. The device
// numbers are the usual ones.
func SyntheticNode(names []string) *hca.Inventory {
	node := &hca.Inventory{RDMACM: &hca.Device{
		Kind: hca.KindRDMACM, Path: "/dev/infiniband/rdma_cm", Number: hca.Number{Major: 10, Minor: 58}, Mode: 0o666,
	}}
	for i, name := range names {
		var ports []hca.Port
		for j, layer := range []string{"InfiniBand", "Ethernet"} {
			ports = append(ports, hca.Port{Number: j + 1, State: hca.StateActive, PhysState: "LinkUp", LinkLayer: layer})
		}
		node.HCAs = append(node.HCAs, hca.HCA{
			Name: name, NodeType: "CA", Function: hca.FunctionPhysical, NUMANode: -1, Ports: ports,
			Devices: []hca.Device{{
				Kind: hca.KindVerbs, Path: fmt.Sprintf("/dev/infiniband/uverbs%d", i),
				Number: hca.Number{Major: 231, Minor: 192 + uint32(i)}, Mode: 0o666, HCA: name,
			}},
		})
	}
	return node
}
