// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// noGUIDs are what a function has that nobody has given a GUID. ib-sriov-cni takes a GUID back with ones.
var noGUIDs = map[string]string{"0000:0000:0000:0000": "zero", "ffff:ffff:ffff:ffff": "all ones"}

// virtualDevices are the PCI devices of virtual functions of ConnectX and BlueField. A virtual machine shows one
// without its physical function.
var virtualDevices = []string{"0x1002", "0x1004", "0x1012", "0x1014", "0x1016", "0x1018", "0x101a", "0x101c", "0x101e",
	"0xa2d3"}

func withoutGUID(v *doctor.View, h hca.HCA) []doctor.Finding {
	is, none := noGUIDs[h.NodeGUID]
	if !none || !h.UsesRDMACM() {
		return nil
	}
	switch h.Function {
	case hca.FunctionVirtual:
	case hca.FunctionScalable:
		return []doctor.Finding{doctor.Fault(object(h), "It is a scalable function, and its node GUID is "+is+".",
			"While no pod uses it (see: rdma-spec status), set its MAC address, from which its GUID is derived. Find its "+
				"port with \"devlink port show\", run \"devlink port function set pci/"+h.Parent+"/PORT hw_addr MAC\", and "+
				"then set its state to inactive and back to active.")}
	default:
		at := pciDevices + h.PCI
		if doctor.Attribute(v, at+"/vendor") == "0x15b3" &&
			slices.Contains(virtualDevices, doctor.Attribute(v, at+"/device")) {
			return []doctor.Finding{doctor.Fault(object(h), "Its node GUID is "+is+".", "It is a virtual function of this "+
				"virtual machine's host. On the host, set its node_guid and port_guid or, on Ethernet, its mac.")}
		}
		return []doctor.Finding{doctor.Fault(object(h), "Its node GUID is "+is+".",
			"Set a GUID with the vendor's firmware tool, and restart the node.")}
	}
	if !h.Active() && !isHeld(v, h) {
		return []doctor.Finding{doctor.Told(object(h), "Its node GUID is %s. It is a virtual function that no container "+
			"is known to use.", is)}
	}
	f := doctor.Fault(object(h), "It is a virtual function, and its node GUID is "+is+".", "Run \"ip link set\" on "+
		"its physical function to set the virtual function's node_guid and port_guid or, on Ethernet, its mac. Then "+
		"rebind its driver.")
	if command := setGUID(v, h); command != "" {
		f.Fix = command
		f = f.Disruptive("the pod that uses the function loses it", "rdma-spec status")
	}
	return []doctor.Finding{f}
}

// isHeld reports whether a container is known to hold an HCA.
func isHeld(v *doctor.View, h hca.HCA) bool {
	answer, _ := v.Containers() // what is unknown is not there
	return slices.ContainsFunc(slices.Concat(answer.Containers, answer.Others),
		func(c node.Container) bool { return slices.Contains(c.HCAs, h.Name) })
}

// setGUID returns the commands that give a virtual function a GUID: one that is made of its parent's, marked as
// assigned locally. On Ethernet, where it cannot be set, the driver makes it of the MAC. It returns "" where something
// that they need is not known.
func setGUID(v *doctor.View, h hca.HCA) string {
	node, err := v.HCAs()
	if err != nil {
		return ""
	}
	i := slices.IndexFunc(node.HCAs,
		func(parent hca.HCA) bool { return parent.PCI == h.Parent && parent.NodeGUID != "" })
	number := v.FunctionNumber(h)
	if number == "" || i < 0 || len(node.HCAs[i].Ports) == 0 || len(node.HCAs[i].Ports[0].Netdevs) == 0 {
		return ""
	}
	port := node.HCAs[i].Ports[0]
	guid := localGUID(node.HCAs[i].NodeGUID, number)
	vf := fmt.Sprintf("ip link set dev %s vf %s ", port.Netdevs[0], number)
	if guid == nil {
		return ""
	}
	if port.LinkLayer == "Ethernet" {
		mac := slices.Concat(guid[:2], guid[4:]) // without the second half of the vendor's part
		return vf + "mac " + mac.String() + " && " + rebindCommand("pci", h.PCI)
	}
	return fmt.Sprintf("%snode_guid %s && %[1]sport_guid %[2]s && %s", vf, guid, rebindCommand("pci", h.PCI))
}

// localGUID makes the GUID of a virtual function from that of its physical function. It has one byte for the function's
// number, and returns nil where that is larger.
func localGUID(guid, number string) net.HardwareAddr {
	b, err := net.ParseMAC(strings.ReplaceAll(guid, ":", "."))
	n, errNumber := strconv.ParseUint(number, 10, 8)
	if err != nil || errNumber != nil {
		return nil
	}
	b[0] |= 2
	b[3] = 0xf0
	b[4] = byte(n)
	return b
}

func sharedGUIDs(v *doctor.View) []doctor.Finding {
	first := map[string]string{}
	return eachHCA(func(_ *doctor.View, h hca.HCA) []doctor.Finding {
		other, twice := first[h.NodeGUID]
		switch {
		// Soft HCAs have GUIDs of their netdevs, of which several can have one address.
		case h.NodeGUID == "" || noGUIDs[h.NodeGUID] != "" || h.Driver == "" && h.PCI == "":
		case twice:
			return []doctor.Finding{doctor.Fault(object(h),
				fmt.Sprintf("It has the same node GUID, %s, as HCA %s.", h.NodeGUID, other),
				"Give one of them a different GUID: for a virtual function, with \"ip link set\" on its physical function; "+
					"otherwise, with the vendor's firmware tool.")}
		default:
			first[h.NodeGUID] = h.Name
		}
		return nil
	})(v)
}
