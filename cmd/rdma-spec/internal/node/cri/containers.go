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
	policy.Container
	Runtime       *Runtime
	ID, SandboxID string
	PID           int // of its first process, in the runtime's PID namespace; 0 where it is unknown
	Spec          Spec
	Problem       error // why it is unknown what the container holds
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
	listed, err := r.api.ListContainers(ctx, &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{
		State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, plain(err)
	}
	found := make([]*Container, len(listed.GetContainers()))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, c := range listed.GetContainers() {
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
		return nil, plain(status.FromContextError(err).Err())
	}
	var running []Container
	for _, c := range found {
		if c != nil {
			running = append(running, *c)
		}
	}
	return running, nil
}

func podName(pod *runtime.PodSandbox) string {
	return pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
}

func (r *Runtime) pods(ctx context.Context) (map[string]*runtime.PodSandbox, error) {
	listed, err := r.api.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, plain(err)
	}
	pods := make(map[string]*runtime.PodSandbox, len(listed.GetItems()))
	for _, pod := range listed.GetItems() {
		pods[pod.GetId()] = pod
	}
	return pods, nil
}

// container asks about one container; nil if it has ended. If the runtime does not answer, that is the container's
// Problem.
func (r *Runtime) container(ctx context.Context, pod *runtime.PodSandbox, listed *runtime.Container) *Container {
	ctx, cancel := context.WithTimeout(ctx, containerWithin)
	defer cancel()
	answer, err := r.api.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: listed.GetId(), Verbose: true})
	if status.Code(err) == codes.NotFound || err == nil &&
		answer.GetStatus().GetState() != runtime.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	c := &Container{
		Container: policy.Container{
			Namespace:      pod.GetMetadata().GetNamespace(),
			Pod:            pod.GetMetadata().GetName(),
			Name:           listed.GetMetadata().GetName(),
			RuntimeHandler: pod.GetRuntimeHandler(),
			Annotations:    policy.Annotations(pod.GetAnnotations(), listed.GetMetadata().GetName()),
		},
		Runtime:   r,
		ID:        listed.GetId(),
		SandboxID: pod.GetId(),
	}
	if err != nil {
		c.Problem = plain(err)
	} else {
		c.Problem = c.read(answer.GetInfo())
	}
	return c
}
