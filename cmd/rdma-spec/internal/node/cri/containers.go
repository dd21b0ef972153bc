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

// askAtOnce is how many containers the runtime is asked about at a time.
const askAtOnce = 8

// containerWithin is how long the runtime may take to answer for one container. A test waits less.
var containerWithin = 5 * time.Second

// Container is a container that runs.
type Container struct {
	policy.Container `json:"container"`
	Runtime          Identity  `json:"runtime"`
	ID               string    `json:"id"`
	SandboxID        string    `json:"-"`
	PID              int       `json:"pid"` // of its first process, in the runtime's PID namespace; 0 where it is unknown
	Started          time.Time `json:"started"`
	Spec             Spec      `json:"spec"`
	Problem          string    `json:"problem,omitempty"` // why it is unknown what the container holds
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

// Waiting returns the pods of the node that are ready and have none of these containers, as NAMESPACE/POD: between two
// starts of a container, the pod keeps its network.
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

// Containers returns the containers of runtimes that run, in the order of their names: those of the pods NAMESPACE/POD
// or, where none is given, all. One that ends meanwhile is left out.
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

// listed asks which containers run.
func (r *Runtime) listed(ctx context.Context) ([]*runtime.Container, error) {
	listed, err := r.api.ListContainers(ctx, &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{
		State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, plainError(err)
	}
	return listed.GetContainers(), nil
}

// Running returns the IDs of the containers that run.
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

// container asks about one container; the zero Container if it has ended. If the runtime does not answer, that is the
// container's Problem.
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

// What runtimes say of a container that did not end by itself.
const (
	exitKilled      = 137 // SIGKILL, also of a runtime that cleans up after a shim
	exitUnknown     = 255 // containerd, where the shim is gone; CRI-O, where the OCI runtime does not know the container
	exitUnknownCRIO = -1  // CRI-O, where conmon has left no exit code
)

// Ended reports whether a container has ended by itself. One that was removed has not.
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
