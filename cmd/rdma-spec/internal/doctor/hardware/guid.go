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

// noGUIDs are the GUIDs of functions to which no GUID was assigned. ib-sriov-cni resets a GUID to all ones.
var noGUIDs = map[string]string{"0000:0000:0000:0000": "zero", "ffff:ffff:ffff:ffff": "all ones"}

// virtualDevices are the PCI device IDs of the virtual functions of ConnectX and BlueField. A virtual machine sees a
// virtual function without the physical function.
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
		return []doctor.Finding{doctor.Fault(object(h), "The scalable function's node GUID is "+is+".",
			"To list the containers that use HCAs, run \"rdma-spec status\". While no pod uses the function, set the "+
				"function's MAC address, from which the GUID is derived. Find the function's port with \"devlink port show\", "+
				"and run \"devlink port function set pci/"+h.Parent+"/PORT hw_addr MAC\". Then set the function's state to "+
				"inactive and back to active.")}
	default:
		at := pciDevices + h.PCI
		if doctor.Attribute(v, at+"/vendor") == "0x15b3" &&
			slices.Contains(virtualDevices, doctor.Attribute(v, at+"/device")) {
			return []doctor.Finding{doctor.Fault(object(h), "The HCA's node GUID is "+is+".", "The HCA is a virtual function "+
				"that the host passed through to this virtual machine. On the host, set the function's node_guid and "+
				"port_guid. On Ethernet, set the function's MAC address instead.")}
		}
		return []doctor.Finding{doctor.Fault(object(h), "The HCA's node GUID is "+is+".",
			"Set a GUID with the vendor's firmware tool, and restart the node.")}
	}
	if !h.Active() && !isHeld(v, h) {
		return []doctor.Finding{doctor.Told(object(h), "The virtual function's node GUID is %s. No container is "+
			"known to use the function.", is)}
	}
	f := doctor.Fault(object(h), "The virtual function's node GUID is "+is+".", "Run \"ip link set\" on the "+
		"physical function to set the virtual function's node_guid and port_guid. On Ethernet, set the MAC address instead. "+
		"Then rebind the virtual function's driver.")
	if command := setGUID(v, h); command != "" {
		f.Fix = command
		f = f.Disruptive("The pod that uses the virtual function loses the HCA.", "rdma-spec status")
	}
	return []doctor.Finding{f}
}

// isHeld reports whether a container is known to use an HCA.
func isHeld(v *doctor.View, h hca.HCA) bool {
	answer, _ := v.Containers() // unknown containers do not count
	return slices.ContainsFunc(slices.Concat(answer.Containers, answer.Others),
		func(c node.Container) bool { return slices.Contains(c.HCAs, h.Name) })
}

// setGUID returns the commands that assign a GUID to a virtual function. The GUID is derived from the parent's GUID and
// marked as locally assigned. On Ethernet, where the GUID cannot be set, the driver derives it from the MAC address.
// setGUID returns "" if information for the commands is missing.
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

// localGUID derives the GUID of a virtual function from the GUID of its physical function. The GUID has one byte for
// the function's number. For a larger number, localGUID returns nil.
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
		// A software HCA's GUID is derived from its netdev, and several netdevs can have the same address.
		case h.NodeGUID == "" || noGUIDs[h.NodeGUID] != "" || h.Driver == "" && h.PCI == "":
		case twice:
			return []doctor.Finding{doctor.Fault(object(h),
				fmt.Sprintf("The HCA's node GUID, %s, is also the node GUID of HCA %s.", h.NodeGUID, other),
				"Change the GUID of one of the two HCAs. For a virtual function, run \"ip link set\" on its physical "+
					"function. For other HCAs, use the vendor's firmware tool.")}
		default:
			first[h.NodeGUID] = h.Name
		}
		return nil
	})(v)
}
