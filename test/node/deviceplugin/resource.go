// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"os"
)

// Resource is what a device plugin advertises, and what it gives to who holds one.
type Resource struct {
	Name        string   // as a pod requests it: rdma/rdma_v100
	Count       int      // how many there are to hold
	Devices     []string // device files of the node; a container finds them at the same paths
	Permissions string   // of those in the container's device cgroup
	CDIDevices  []string // devices of CDI files that a container gets: vendor.com/class=name
}

// Shared is a resource of the RDMA shared device plugin: many containers hold one HCA, each with all of its character
// devices.
func Shared(name string, hca int) Resource {
	return Resource{Name: name, Count: 100, Devices: CharacterDevices(hca), Permissions: "rwm"}
}

// SRIOV is a resource of the SR-IOV network device plugin, whose devices are the same with narrower permissions. A
// virtual function belongs to one container; there are a few, all on one HCA here.
func SRIOV(name string, hca int) Resource {
	return Resource{Name: name, Count: 8, Devices: CharacterDevices(hca), Permissions: "rw"}
}

// CDI is a resource of a device plugin that leaves to CDI what its holders get.
func CDI(name string, devices ...string) Resource {
	return Resource{Name: name, Count: 100, CDIDevices: devices}
}

// Deviceless is a resource whose holders get no device, so that only the kubelet knows who they are.
func Deviceless(name string) Resource { return Resource{Name: name, Count: 100} }

// CharacterDevices returns the devices that device plugins give for an HCA with one port: also umad, and issm where the
// node has it, which newer kernels make for InfiniBand alone.
func CharacterDevices(hca int) []string {
	devices := []string{"/dev/infiniband/rdma_cm"}
	for _, kind := range []string{"issm", "umad", "uverbs"} {
		device := fmt.Sprintf("/dev/infiniband/%s%d", kind, hca)
		if _, err := os.Stat(device); kind != "issm" || err == nil {
			devices = append(devices, device)
		}
	}
	return devices
}
