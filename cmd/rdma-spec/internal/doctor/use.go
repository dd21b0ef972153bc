// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const pciDevices = "sys/bus/pci/devices/"

// GPUFiles are the files of NVIDIA's driver, by PCI address, with the GPU's model and the device's minor number.
const GPUFiles = "proc/driver/nvidia/gpus/*/information"

// GPUReads are the files that a check declares if it queries the GPUs.
var GPUReads = []string{pciDevices + "*", pciDevices + "*/class", pciDevices + "*/vendor", pciDevices + "*/driver"}

// GIDReads are the tables of GIDs.
var GIDReads = []string{"sys/class/infiniband/*/ports/*/gids/*", "sys/class/infiniband/*/ports/*/gid_attrs/types/*"}

// GPUs returns the PCI addresses of the GPUs and other accelerators that use the node's own driver.
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

// OtherGPUs returns the drivers of GPUs and other accelerators that the doctor does not support.
func (v *View) OtherGPUs() []string {
	devices, _ := v.Glob(pciDevices + "*") // devices that cannot be listed count as missing
	var found []string
	for _, at := range devices {
		driver, err := v.Readlink(at + "/driver")
		if err == nil && hca.OtherAccelerator(Attribute(v, at+"/class"), path.Base(driver)) {
			found = append(found, path.Base(at))
		}
	}
	return v.DriversOf(found)
}

// UsesRDMA reports whether the node is known to use RDMA. An Ethernet card alone is not enough. The signs are an ACTIVE
// port of a fabric or of a function that is only for RDMA (erdma), a software HCA, which somebody created, at least
// four ACTIVE RoCE ports and at least as many as GPUs, or pods that use RDMA.
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

// ForRDMA reports whether the node was set up for RDMA: a plugin is running, its policy is in force, or pods use RDMA.
func (v *View) ForRDMA() bool {
	plugin, _ := v.Plugin() // an unknown plugin counts as not running
	return len(plugin.Own()) > 0 || plugin.Policy.Lives || v.UsedByPods()
}

// Unused returns the finding for a node that is not known to use RDMA.
func Unused() []Finding { return Inapplicable("No use of RDMA was detected on this node.") }
