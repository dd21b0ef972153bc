// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const pciDevices = "sys/bus/pci/devices/"

// GPUFiles are what NVIDIA's driver says of its GPUs, by PCI address: the model, and the device's minor number.
const GPUFiles = "proc/driver/nvidia/gpus/*/information"

// GPUReads are what a check declares that asks for the GPUs.
var GPUReads = []string{pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver"}

// GIDReads are the tables of GIDs.
var GIDReads = []string{"sys/class/infiniband/*/ports/*/gids/*", "sys/class/infiniband/*/ports/*/gid_attrs/types/*"}

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

// DriversOf returns the drivers of PCI devices, each once.
func (v *View) DriversOf(addresses []string) (drivers []string) {
	for _, address := range addresses {
		driver, _ := v.Readlink(pciDevices + address + "/driver")
		drivers = append(drivers, path.Base(driver))
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

// OtherGPUs returns the drivers of GPUs and other accelerators of which nothing is known here.
func (v *View) OtherGPUs() []string {
	devices, _ := v.Glob(pciDevices + "*") // what cannot be listed is not there
	var found []string
	for _, at := range devices {
		driver, err := v.Readlink(at + "/driver")
		if err == nil && hca.OtherAccelerator(Attribute(v, at+"/class"), path.Base(driver)) {
			found = append(found, path.Base(at))
		}
	}
	return v.DriversOf(found)
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

// Unused is the finding where nothing uses RDMA.
func Unused() []Finding { return Inapplicable("Nothing on this node is known to use RDMA.") }
