// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// LinkOfFunction is what gives a virtual function a link whose physical function has one, "" for other HCAs.
func (v *View) LinkOfFunction(h hca.HCA, p hca.Port) string {
	node, err := v.HCAs()
	if err != nil || h.Function != hca.FunctionVirtual {
		return ""
	}
	i := slices.IndexFunc(node.HCAs, func(physical hca.HCA) bool { return physical.PCI == h.Parent && physical.Active() })
	switch {
	case i < 0:
		return ""
	case p.LinkLayer == "InfiniBand" && p.PhysState == "LinkUp":
		return "Let the subnet manager serve virtual functions: NVIDIA's OpenSM needs virt_enabled 2 in opensm.conf, and a " +
			"restart"
	}
	netdev := "NETDEV"
	if netdevs := node.HCAs[i].Ports[0].Netdevs; len(netdevs) > 0 {
		netdev = netdevs[0]
	}
	return fmt.Sprintf("Let its link follow that of its physical function, HCA %s: ip link set %s vf N state auto; see "+
		"N, its number: ls -l /sys/bus/pci/devices/%s/virtfn*", node.HCAs[i].Name, netdev, h.Parent)
}
