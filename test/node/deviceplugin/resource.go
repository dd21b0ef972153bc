// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"os"
)

// Resource is what a device plugin advertises, and what a container gets to which it is allocated.
type Resource struct {
	Name        string   // the name that a pod requests: rdma/rdma_v100
	Count       int      // how many the node has
	Devices     []string // device files of the node, which have the same paths in a container
	Permissions string   // of the device files, in the container's device cgroup
	CDIDevices  []string // CDI devices that a container gets: vendor.com/class=name
}

// Shared returns a resource of the RDMA shared device plugin: many containers share one HCA, and each gets all of its
// character devices.
func Shared(name string, hca int) Resource {
	return Resource{Name: name, Count: 100, Devices: CharacterDevices(hca), Permissions: "rwm"}
}

// SRIOV returns a resource of the SR-IOV network device plugin: a container gets the same devices as with Shared, but
// with fewer permissions. Each virtual function is allocated to only one container. Here, all of them are on one HCA.
func SRIOV(name string, hca int) Resource {
	return Resource{Name: name, Count: 8, Devices: CharacterDevices(hca), Permissions: "rw"}
}

// CDI returns a resource of a device plugin that injects its devices through CDI.
func CDI(name string, devices ...string) Resource {
	return Resource{Name: name, Count: 100, CDIDevices: devices}
}

// Deviceless returns a resource without devices, so only the kubelet knows to which containers it is allocated.
func Deviceless(name string) Resource { return Resource{Name: name, Count: 100} }

// CharacterDevices returns the devices that device plugins inject for an HCA with one port. They include umad, and also
// issm if the node has it: newer kernels create issm only for InfiniBand.
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
