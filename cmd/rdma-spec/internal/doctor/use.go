// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const pciDevices = "sys/bus/pci/devices/"

// GPUFiles are what NVIDIA's driver says of its GPUs, by PCI address: the model, and the device's minor number.
const GPUFiles = "proc/driver/nvidia/gpus/*/information"

// GPUReads are what a check declares that asks for the GPUs.
var GPUReads = []string{pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver"}

// GPUs returns the PCI addresses of the GPUs and other accelerators that the node's own driver uses.
func (v *View) GPUs() (found []string, err error) {
	devices, err := v.Glob(pciDevices + "*")
	for _, at := range devices {
		driver, _ := v.Readlink(at + "/driver")
		if hca.Accelerator(Attribute(v, at+"/class"), path.Base(driver)) {
			found = append(found, path.Base(at))
		}
	}
	return found, err
}

// UsesRDMA reports whether something on the node is known to use RDMA, which an Ethernet card alone does not tell: an
// ACTIVE port of a fabric or of a function that does nothing else (erdma), a soft HCA, which somebody made, at least
// four ACTIVE RoCE ports and as many as GPUs, or pods.
func (v *View) UsesRDMA(gpus int) bool {
	node, err := v.HCAs()
	if err != nil {
		return false
	}
	rails := 0
	for _, h := range slices.DeleteFunc(slices.Clone(node.HCAs), func(h hca.HCA) bool { return !h.ForPrograms() }) {
		made := h.PCI == "" && h.Function == hca.FunctionPhysical
		for _, p := range h.Ports {
			switch {
			case !p.Active():
			case p.LinkLayer != "Ethernet", made, h.Driver == "erdma":
				return true
			default:
				rails++
			}
		}
	}
	return gpus > 0 && rails >= max(4, gpus) || v.UsedByPods()
}

// ForRDMA reports whether somebody has made the node one for RDMA: a plugin runs, its policy is in force, or pods use
// RDMA.
func (v *View) ForRDMA() bool {
	plugin, _ := v.Plugin() // what is unknown does not run
	return len(plugin.Own()) > 0 || plugin.Policy.Lives || v.UsedByPods()
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

// Unused is the finding where nothing uses RDMA.
func Unused() []Finding { return Inapplicable("Nothing on this node was found that uses RDMA.") }
