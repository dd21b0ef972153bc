// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/spec"
)

// adjust turns a grant into an adjustment of a container, less what the container has already, and into fields for its
// log line. It does not set a device or rlimit again that another plugin has set: that would fail the container's
// creation.
func adjust(ctr *api.Container, grant spec.Grant) (*api.ContainerAdjustment, logrus.Fields) {
	adjustment, given := &api.ContainerAdjustment{}, logrus.Fields{}
	if grant.Memlock != 0 {
		given["memlock"] = grant.Memlock.String()
		current, known := reportedMemlock(ctr)
		if raised, changed := current.Raise(grant.Memlock); changed || !known {
			adjustment.AddRlimit(spec.RlimitMemlock, uint64(raised.Hard), uint64(raised.Soft))
		} else {
			given["memlock"] = current.Soft.String() + " (had it)"
		}
	}
	if grant.IPCLock != spec.IPCLockNo {
		given["ipc_lock"] = string(grant.IPCLock)
	}
	present := map[string]bool{}
	for _, d := range ctr.GetLinux().GetDevices() {
		present[d.GetPath()] = true
	}
	var added []string
	for _, d := range grant.Devices {
		if !present[d.Path] {
			adjustment.AddDevice(&api.LinuxDevice{
				Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor),
				FileMode: api.FileMode(uint32(os.FileMode(d.Mode).Perm())), Uid: api.UInt32(d.UID), Gid: api.UInt32(d.GID),
			})
			added = append(added, strings.TrimPrefix(d.Path, "/dev/infiniband/"))
		}
	}
	if len(added) > 0 {
		given["devices"] = strings.Join(added, ",")
	}
	return adjustment, given
}
