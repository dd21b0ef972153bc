// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const noGUID = "0000:0000:0000:0000"

// EFA has no GUIDs and no RDMA_CM. sysfs calls its type unspecified.
func isEFA(h hca.HCA) bool { return h.NodeType == "unspecified" }

func zeroGUID(v *View, h hca.HCA) []Finding {
	if h.NodeGUID != noGUID || isEFA(h) {
		return nil
	}
	if h.Function != hca.FunctionVirtual {
		return []Finding{wrong(object(h), "Its node GUID is zero.", "Set a GUID with the vendor's firmware tool, and restart the node.")}
	}
	return []Finding{wrong(object(h), "It is a virtual function whose node GUID is zero.", setGUID(v, h))}
}

// setGUID returns the commands that give a virtual function a GUID: one that is made of its parent's, marked as assigned locally. On
// Ethernet, where it cannot be set, the driver makes it of the MAC.
func setGUID(v *View, h hca.HCA) string {
	const general = "With \"ip link set\" on its physical function, set node_guid and port_guid of the virtual function, on Ethernet its mac, " +
		"and bind its driver again."
	node, err := v.HCAs()
	if err != nil {
		return general
	}
	i := slices.IndexFunc(node.HCAs, func(parent hca.HCA) bool { return parent.PCI == h.Parent && len(parent.NodeGUID) == len(noGUID) })
	links, err := v.Glob("sys/bus/pci/devices/" + h.Parent + "/virtfn*")
	if i < 0 || err != nil || len(node.HCAs[i].Ports) == 0 || len(node.HCAs[i].Ports[0].Netdevs) == 0 {
		return general
	}
	for _, link := range links {
		number := strings.TrimPrefix(path.Base(link), "virtfn")
		if to, err := v.Readlink(link); err != nil || path.Base(to) != h.PCI {
			continue
		}
		guid, port := localGUID(node.HCAs[i].NodeGUID, number), node.HCAs[i].Ports[0]
		vf := fmt.Sprintf("ip link set dev %s vf %s ", port.Netdevs[0], number)
		if port.LinkLayer == "Ethernet" {
			return vf + "mac " + localMAC(guid) + " && " + rebind("pci", h.PCI)
		}
		return vf + "node_guid " + guid + " && " + vf + "port_guid " + guid + " && " + rebind("pci", h.PCI)
	}
	return general
}

// localGUID makes the GUID of a virtual function from that of its physical function.
func localGUID(guid, number string) string {
	var b [8]byte
	var n byte
	digits := strings.ReplaceAll(guid, ":", "")
	for i := range b {
		_, _ = fmt.Sscanf(digits[2*i:2*i+2], "%02x", &b[i]) // the inventory has checked the form
	}
	_, _ = fmt.Sscan(number, &n)
	b[0], b[3], b[4] = b[0]|2, 0xf0, n
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
}

// localMAC makes the MAC of a virtual function from the GUID that localGUID has made for it: without the second half of the vendor's part.
func localMAC(guid string) string {
	bytes := strings.Split(guid, ":")
	return strings.Join(slices.Concat(bytes[:2], bytes[4:]), ":")
}

func sharedGUIDs(v *View) []Finding {
	return ofHCAs(v, func(hcas []hca.HCA) []Finding {
		var found []Finding
		first := map[string]string{}
		for _, h := range hcas {
			// Soft HCAs have GUIDs of their netdevs, of which several can have one address.
			if h.NodeGUID == "" || h.NodeGUID == noGUID || h.Driver == "" && h.PCI == "" {
				continue
			}
			if other, twice := first[h.NodeGUID]; twice {
				found = append(found, wrong(object(h), fmt.Sprintf("It has the node GUID %s of HCA %s.", h.NodeGUID, other),
					"Give one of them another GUID: \"ip link set\" on the physical function of a virtual one, else the vendor's firmware tool."))
				continue
			}
			first[h.NodeGUID] = h.Name
		}
		return found
	})
}
