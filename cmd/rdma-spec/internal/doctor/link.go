// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// FunctionReads are the files that a check declares if it queries the link or the number of a function.
var FunctionReads = []string{pciDevices + "*/virtfn*", pciDevices + "*/net/*/phys_port_name"}

// FunctionNumber returns the virtual function's number on its physical function, or "" if the number is unknown.
func (v *View) FunctionNumber(h hca.HCA) string {
	links, _ := v.Glob(pciDevices + h.Parent + "/virtfn*") // links that cannot be listed count as missing
	for _, link := range links {
		if to, err := v.Readlink(link); err == nil && path.Base(to) == h.PCI {
			return strings.TrimPrefix(path.Base(link), "virtfn")
		}
	}
	return ""
}

// ofFunction matches the port name of a virtual function's representor and the function's number. Intel uses pf0vfr1.
var ofFunction = regexp.MustCompile(`^pf\d+vfr?(\d+)$`)

// representor returns the netdev that represents a virtual function if the card is in switchdev mode, or "".
func (v *View) representor(h hca.HCA) string {
	number := v.FunctionNumber(h)
	names, _ := v.Glob(pciDevices + h.Parent + "/net/*/phys_port_name")
	for _, name := range names {
		if of := ofFunction.FindStringSubmatch(Attribute(v, name)); of != nil && of[1] == number {
			return path.Base(path.Dir(name))
		}
	}
	return ""
}

// LinkOfFunction returns the fix for a virtual function without a link whose physical function has a link. It returns
// "" for other HCAs.
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
		return fmt.Sprintf("HCA %s is a virtual function. Configure the fabric's subnet manager to support virtual "+
			"functions. For NVIDIA's OpenSM, set virt_enabled 2 in opensm.conf on the subnet manager's host. Restart OpenSM "+
			"at a time when the whole fabric can do without it", h.Name)
	}
	if of := v.representor(h); of != "" { // the kernel refuses to set the link of the function itself
		return fmt.Sprintf("The virtual function's link follows the state of the function's representor. To bring up "+
			"the representor, run: ip link set %s up. To check that the representor is a port of an Open vSwitch bridge, run: "+
			"ovs-vsctl port-to-br %[1]s", of)
	}
	netdev := "NETDEV"
	if netdevs := node.HCAs[i].Ports[0].Netdevs; len(netdevs) > 0 {
		netdev = netdevs[0]
	}
	return fmt.Sprintf("To make the virtual function's link follow the link of its physical function, HCA %s, run: "+
		"ip link set %s vf N state auto. To find the number N of the virtual function, run: "+
		"ls -l /sys/bus/pci/devices/%s/virtfn*", node.HCAs[i].Name, netdev, h.Parent)
}
