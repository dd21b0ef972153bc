// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// What runtimes say of a container that did not end by itself.
const (
	exitKilled      = 137 // SIGKILL, also of a runtime that cleans up after a shim
	exitUnknown     = 255 // containerd, where the shim is gone; CRI-O, where the OCI runtime does not know the container
	exitUnknownCRIO = -1  // CRI-O, where conmon has left no exit code
)

// Ended reports whether a container has ended by itself. One that was removed has not.
func (r *Runtime) Ended(ctx context.Context, id string) (bool, error) {
	answer, err := r.api.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id})
	switch {
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, plain(err)
	case answer.GetStatus().GetState() != runtime.ContainerState_CONTAINER_EXITED:
		return false, nil
	}
	switch answer.GetStatus().GetExitCode() {
	case exitKilled, exitUnknown, exitUnknownCRIO:
		return false, nil
	}
	return true, nil
}
