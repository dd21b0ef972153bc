// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// adjust turns a grant into an adjustment of a container, less what the container has already. It does not set a device
// or rlimit again that another plugin has set: that would fail the container's creation.
func adjust(c policy.Container, grant spec.Grant) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	if raised, changed := c.Memlock.Raise(grant.Memlock); changed {
		adjustment.AddRlimit(spec.RlimitMemlock, uint64(raised.Hard), uint64(raised.Soft))
	}
	for _, d := range lacking(c, grant.Devices) {
		adjustment.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor),
			FileMode: api.FileMode(uint32(os.FileMode(d.Mode).Perm())), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	return adjustment
}

// lacking returns those of a grant's devices that a container does not hold.
func lacking(c policy.Container, devices []hca.Device) (lacks []hca.Device) {
	for _, d := range devices {
		if !slices.Contains(c.Devices, deviceOf(d)) {
			lacks = append(lacks, d)
		}
	}
	return lacks
}

// deviceOf returns an HCA's device as a container holds it.
func deviceOf(d hca.Device) policy.Device {
	return policy.Device{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)}
}
