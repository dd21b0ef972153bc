// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// askAtOnce is the number of concurrent requests about containers.
const askAtOnce = 8

// containerWithin is the timeout for a request about a container. Tests set a shorter timeout.
var containerWithin = 5 * time.Second

// Container is a running container.
type Container struct {
	policy.Container `json:"container"`
	Runtime          Identity  `json:"runtime"`
	ID               string    `json:"id"`
	SandboxID        string    `json:"-"`
	PID              int       `json:"pid"` // the first process, in the runtime's PID namespace; 0 if unknown
	Started          time.Time `json:"started"`
	Spec             Spec      `json:"spec"`
	Problem          string    `json:"problem,omitempty"` // why the container's resources are unknown
}

// Pods returns the pods of the node, as NAMESPACE/POD.
func (r *Runtime) Pods(ctx context.Context) ([]string, error) {
	pods, err := r.pods(ctx)
	var names []string
	for _, pod := range pods {
		names = append(names, podName(pod))
	}
	return names, err
}

// Waiting returns the node's ready pods that have none of these containers, as NAMESPACE/POD. Between two starts of a
// container, a pod keeps its network.
func (r *Runtime) Waiting(ctx context.Context, running []Container) (names []string, err error) {
	pods, err := r.pods(ctx)
	for id, pod := range pods {
		if pod.GetState() == runtime.PodSandboxState_SANDBOX_READY &&
			!slices.ContainsFunc(running, func(c Container) bool { return c.SandboxID == id }) {
			names = append(names, podName(pod))
		}
	}
	slices.Sort(names)
	return names, err
}

// Containers returns the runtimes' running containers, sorted by name. If pods are given as NAMESPACE/POD, it returns
// only their containers. It omits containers that exit in the meantime.
func Containers(ctx context.Context, runtimes []*Runtime, only ...string) ([]Container, error) {
	var running []Container
	for _, r := range runtimes {
		containers, err := r.containers(ctx, only)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Socket, err)
		}
		running = append(running, containers...)
	}
	slices.SortFunc(running, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.ID, b.ID))
	})
	return running, nil
}

func (r *Runtime) containers(ctx context.Context, only []string) ([]Container, error) {
	pods, err := r.pods(ctx)
	if err != nil {
		return nil, err
	}
	listed, err := r.listed(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]Container, len(listed))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, c := range listed {
		pod, known := pods[c.GetPodSandboxId()]
		if !known || len(only) > 0 && !slices.Contains(only, podName(pod)) {
			continue // an unknown pod was created after the pods were listed
		}
		asking.Go(func() error {
			found[i] = r.container(ctx, pod, c)
			return ctx.Err()
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, plainError(status.FromContextError(err).Err())
	}
	return slices.DeleteFunc(found, func(c Container) bool { return c.ID == "" }), nil
}

// listed queries the runtime for its running containers.
func (r *Runtime) listed(ctx context.Context) ([]*runtime.Container, error) {
	listed, err := r.api.ListContainers(ctx, &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{
		State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, plainError(err)
	}
	return listed.GetContainers(), nil
}

// Running returns the IDs of the running containers.
func (r *Runtime) Running(ctx context.Context) (ids []string, err error) {
	listed, err := r.listed(ctx)
	for _, c := range listed {
		ids = append(ids, c.GetId())
	}
	return ids, err
}

func podName(pod *runtime.PodSandbox) string {
	return pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
}

func (r *Runtime) pods(ctx context.Context) (map[string]*runtime.PodSandbox, error) {
	listed, err := r.api.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, plainError(err)
	}
	pods := make(map[string]*runtime.PodSandbox, len(listed.GetItems()))
	for _, pod := range listed.GetItems() {
		pods[pod.GetId()] = pod
	}
	return pods, nil
}

// container queries the runtime for a container. If the container has exited, the result is the zero Container. If the
// runtime does not respond, Problem contains the error.
func (r *Runtime) container(ctx context.Context, pod *runtime.PodSandbox, listed *runtime.Container) Container {
	ctx, cancel := context.WithTimeout(ctx, containerWithin)
	defer cancel()
	answer, err := r.api.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: listed.GetId(), Verbose: true})
	if status.Code(err) == codes.NotFound || err == nil &&
		answer.GetStatus().GetState() != runtime.ContainerState_CONTAINER_RUNNING {
		return Container{}
	}
	c := Container{
		Container: policy.Container{
			Namespace:      pod.GetMetadata().GetNamespace(),
			Pod:            pod.GetMetadata().GetName(),
			Name:           listed.GetMetadata().GetName(),
			RuntimeHandler: pod.GetRuntimeHandler(),
			Annotations:    policy.Annotations(pod.GetAnnotations(), listed.GetMetadata().GetName()),
		},
		Runtime: r.Identity, ID: listed.GetId(), SandboxID: pod.GetId(),
	}
	if at := answer.GetStatus().GetStartedAt(); at > 0 {
		c.Started = time.Unix(0, at).UTC()
	}
	if err != nil {
		err = plainError(err)
	} else {
		err = c.read(answer.GetInfo())
	}
	if err != nil {
		c.Problem = err.Error()
	}
	return c
}

// Exit codes that runtimes report for a container that did not exit by itself.
const (
	exitKilled      = 137 // SIGKILL, also from a runtime that cleans up after a shim
	exitUnknown     = 255 // containerd: the shim is gone; CRI-O: the OCI runtime does not know the container
	exitUnknownCRIO = -1  // CRI-O: conmon has left no exit code
)

// Ended reports whether a container has exited by itself. For a removed container, it returns false.
func (r *Runtime) Ended(ctx context.Context, id string) (bool, error) {
	answer, err := r.api.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id})
	if status.Code(err) == codes.NotFound {
		return false, nil
	}
	if err != nil {
		return false, plainError(err)
	}
	return answer.GetStatus().GetState() == runtime.ContainerState_CONTAINER_EXITED &&
		!slices.Contains([]int32{exitKilled, exitUnknown, exitUnknownCRIO}, answer.GetStatus().GetExitCode()), nil
}
