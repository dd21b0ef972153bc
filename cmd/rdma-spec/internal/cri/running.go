// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Running returns the IDs of the containers that run.
func (r *Runtime) Running(ctx context.Context) ([]string, error) {
	listed, err := r.api.ListContainers(ctx, &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{
		State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, plain(err)
	}
	var ids []string
	for _, c := range listed.GetContainers() {
		ids = append(ids, c.GetId())
	}
	return ids, nil
}
