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

// adjust returns the adjustment that adds the missing part of a container's grant. The adjustment never sets a device
// or an rlimit that another plugin has set, since the container's creation would fail.
func adjust(c policy.Container, grant spec.Grant) *api.ContainerAdjustment {
	adjustment := &api.ContainerAdjustment{}
	lacks := grant.Lacks(hasOf(&c))
	if raised, changed := c.Memlock.Raise(lacks.Memlock); changed {
		adjustment.AddRlimit(spec.RlimitMemlock, uint64(raised.Hard), uint64(raised.Soft))
	}
	for _, d := range lacks.Devices {
		adjustment.AddDevice(&api.LinuxDevice{
			Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor),
			FileMode: api.FileMode(uint32(os.FileMode(d.Mode).Perm())), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
		})
	}
	return adjustment
}

// hasOf returns a container's memlock and devices, as an event describes them. Events do not report capabilities.
func hasOf(c *policy.Container) spec.Has {
	return spec.Has{
		Memlock: c.Memlock.Soft,
		Holds:   func(d hca.Device) bool { return slices.Contains(c.Devices, deviceOf(d)) },
	}
}

// deviceOf converts an HCA's device to a container's device.
func deviceOf(d hca.Device) policy.Device {
	return policy.Device{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)}
}
