// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const pciDevices = "sys/bus/pci/devices/"

// GPUReads are what a check declares that asks for the GPUs.
var GPUReads = []string{pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver"}

// GPUs returns the PCI addresses of the GPUs that the node's own driver uses. Those that a virtual machine has do not
// count.
func (v *View) GPUs() (found []string, err error) {
	devices, err := v.Glob(pciDevices + "*")
	for _, at := range devices {
		driver, _ := v.Readlink(at + "/driver")
		ours := path.Base(driver) == "nvidia" || path.Base(driver) == "amdgpu"
		if ours && strings.HasPrefix(Attribute(v, at+"/class"), "0x03") {
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
	for _, h := range node.HCAs {
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

// Unused is the finding where nothing uses RDMA.
func Unused() []Finding { return Inapplicable("Nothing on this node was found that uses RDMA.") }
