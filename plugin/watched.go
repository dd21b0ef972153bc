// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/repair"
	"github.com/rdma-spec/rdma-spec/spec"
)

// watched returns what repair records of a container that gets a grant, with the injected devices and the granted
// memlock.
func watched(c policy.Container, ctr *api.Container, grant spec.Grant) repair.Container {
	memlock, _ := reportedMemlock(ctr)
	memlock, _ = memlock.Raise(grant.Memlock)
	c.Devices = slices.Grow(slices.Clip(c.Devices), len(grant.Devices))
	for _, d := range grant.Devices {
		c.Devices = append(c.Devices, policy.Device{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)})
	}
	return repair.Container{Container: c, ID: ctr.GetId(), Sandbox: ctr.GetPodSandboxId(), Memlock: memlock}
}

// listed returns what repair records of the containers that the runtime lists. A container without a sandbox is left
// out: its namespace and annotations are unknown. containerd lists no sandbox that it could not load.
func listed(pods []*api.PodSandbox, containers []*api.Container) []repair.Container {
	byID := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	list := make([]repair.Container, 0, len(containers))
	for _, ctr := range containers {
		if pod, known := byID[ctr.GetPodSandboxId()]; known {
			list = append(list, watched(ContainerOf(pod, ctr), ctr, spec.Grant{}))
		}
	}
	return list
}
