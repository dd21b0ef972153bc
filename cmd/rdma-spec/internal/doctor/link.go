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

// FunctionReads are what a check declares that asks for the link of a function, or for its number.
var FunctionReads = []string{pciDevices + "*/virtfn*", pciDevices + "*/net/*/phys_port_name"}

// FunctionNumber returns the number that the physical function has for a virtual one, "" where it is not known.
func (v *View) FunctionNumber(h hca.HCA) string {
	links, _ := v.Glob(pciDevices + h.Parent + "/virtfn*") // what cannot be listed has none
	for _, link := range links {
		if to, err := v.Readlink(link); err == nil && path.Base(to) == h.PCI {
			return strings.TrimPrefix(path.Base(link), "virtfn")
		}
	}
	return ""
}

// ofFunction is the port name of a virtual function's representor, and its number. Intel's is pf0vfr1.
var ofFunction = regexp.MustCompile(`^pf\d+vfr?(\d+)$`)

// representor returns the netdev that stands for a virtual function where its card is in switchdev mode, else "".
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
		return "Let the subnet manager serve virtual functions: for NVIDIA's OpenSM, set virt_enabled 2 in opensm.conf, " +
			"and restart OpenSM"
	}
	if of := v.representor(h); of != "" { // the kernel refuses to set the link of the function itself
		return fmt.Sprintf("Its link follows the state of its representor. Bring up the representor: ip link set %s up. "+
			"Then check that the representor is a port of an Open vSwitch bridge: ovs-vsctl port-to-br %[1]s", of)
	}
	netdev := "NETDEV"
	if netdevs := node.HCAs[i].Ports[0].Netdevs; len(netdevs) > 0 {
		netdev = netdevs[0]
	}
	return fmt.Sprintf("Make its link follow the link of its physical function, HCA %s: ip link set %s vf N state "+
		"auto. To find its number N: ls -l /sys/bus/pci/devices/%s/virtfn*", node.HCAs[i].Name, netdev, h.Parent)
}
