// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const pciDevices = "sys/bus/pci/devices/"

// linkReads are the files that describe a PCI device and its link.
var linkReads = []string{
	pciDevices + "*", pciDevices + "*/current_link_speed", pciDevices + "*/max_link_speed",
	pciDevices + "*/current_link_width", pciDevices + "*/max_link_width", pciDevices + "*/vendor",
}

// pciChecks returns the checks of the path from HCAs to the CPU.
func pciChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "pcie-link", Family: "hca",
		Title:  "Each HCA's PCIe link has the width and speed that the card and the slot support.",
		Impact: "Transfers through the HCA do not reach the port's rate.",
		Reads:  linkReads, Needs: []string{"hca-answers"}, Look: slowLinks,
	}}
}

// slowLinks compares each link between HCAs and the CPU with the maximum that both ends support: the link of the card,
// and the links of the switches above the card. Functions of a card have no separate link.
func slowLinks(v *doctor.View) []doctor.Finding {
	seen := map[string]bool{}
	return eachHCA(func(v *doctor.View, h hca.HCA) (found []doctor.Finding) {
		if h.Function != hca.FunctionPhysical || h.PCI == "" {
			return nil
		}
		if _, err := v.Exists(pciDevices + h.PCI); err != nil {
			return []doctor.Finding{doctor.Unsure(object(h),
				fmt.Sprintf("The state of the HCA's PCIe link is unknown: %v.", err))}
		}
		way := wayTo(v, h.PCI)
		for i := len(way) - 1; i > 0; i -= 2 { // the port above a switch's upstream port, or a card, is the link's other end
			lacks := lacking(v, way[i], way[i-1])
			if lacks == "" || seen[way[i]] {
				continue
			}
			seen[way[i]] = true
			of := "The HCA's PCIe link"
			if way[i] != h.PCI {
				of = "The PCIe link of " + way[i] + ", a switch above the HCA,"
			}
			found = append(found, doctor.Fault(object(h), of+" has "+lacks+", although both ends support more.",
				"Turn off the node. Reseat the card, or try another slot. To check the result, run: lspci -vvs "+way[i]+
					" | grep LnkSta:"))
		}
		return found
	})(v)
}

// vendorQEMU is the vendor of the ports that QEMU emulates.
const vendorQEMU = "0x1b36"

// lacking describes how a link falls short of the maximum of its two ends, "" if it does not. In a virtual machine, the
// other end is missing, or its values are those of the hypervisor: "Unknown", 0, or 32 lanes.
func lacking(v *doctor.View, device, port string) string {
	if doctor.Attribute(v, pciDevices+port+"/vendor") == vendorQEMU {
		return ""
	}
	var lacks []string
	for _, kind := range []string{"speed", "width"} {
		current := doctor.Attribute(v, pciDevices+device+"/current_link_"+kind)
		most := doctor.Attribute(v, pciDevices+device+"/max_link_"+kind)
		slot := doctor.Attribute(v, pciDevices+port+"/max_link_"+kind)
		if quantity(slot) < quantity(most) {
			most = slot
		}
		if quantity(current) > 0 && quantity(current) < quantity(most) {
			lacks = append(lacks, fmt.Sprintf("a %s of %s instead of %s", kind,
				strings.TrimSuffix(current, " PCIe"), strings.TrimSuffix(most, " PCIe")))
		}
	}
	return strings.Join(lacks, " and ")
}

// quantity returns the number at the beginning of an attribute: "16.0 GT/s PCIe", "16".
func quantity(attribute string) (n float64) {
	_, _ = fmt.Sscan(attribute, &n)
	return n
}

var pciForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// wayTo returns the PCI devices from a root port down to a device. It returns none if sysfs does not show the path.
func wayTo(v *doctor.View, address string) (devices []string) {
	to, _ := v.Readlink(pciDevices + address)
	for part := range strings.SplitSeq(path.Clean(to), "/") {
		if pciForm.MatchString(part) {
			devices = append(devices, part)
		}
	}
	return devices
}

// bridges returns the PCI bridges above a device, from the root port down.
func bridges(v *doctor.View, address string) []string {
	way := wayTo(v, address)
	return way[:max(0, len(way)-1)]
}
