// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// askAtOnce is how many containers the runtime is asked about at a time.
const askAtOnce = 8

// Container is a container that runs.
type Container struct {
	policy.Container
	ID, SandboxID string
	PID           int // of its first process, in the runtime's PID namespace; 0 where the runtime does not tell
	Spec          Spec
	Problem       error // why the runtime does not tell what it holds
}

// Containers gives the containers that run, in the order of their names. One that ends meanwhile is left out.
func (r *Runtime) Containers(ctx context.Context) ([]Container, error) {
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
		if !known {
			continue // it has come with its pod since those were listed
		}
		asking.Go(func() (err error) {
			found[i], err = r.container(ctx, pod, c)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, plain(err)
	}
	var running []Container
	for _, c := range found {
		if c != nil {
			running = append(running, *c)
		}
	}
	slices.SortFunc(running, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return running, nil
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

// container asks about one container; nil if it is gone.
func (r *Runtime) container(ctx context.Context, pod *runtime.PodSandbox, listed *runtime.Container) (*Container, error) {
	answer, err := r.api.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: listed.GetId(), Verbose: true})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if answer.GetStatus().GetState() != runtime.ContainerState_CONTAINER_RUNNING {
		return nil, nil
	}
	c := &Container{
		Container: policy.Container{
			Namespace:      pod.GetMetadata().GetNamespace(),
			Pod:            pod.GetMetadata().GetName(),
			Name:           listed.GetMetadata().GetName(),
			RuntimeHandler: pod.GetRuntimeHandler(),
			Annotations:    policy.Annotations(pod.GetAnnotations(), listed.GetMetadata().GetName()),
		},
		ID:        listed.GetId(),
		SandboxID: pod.GetId(),
	}
	c.Problem = c.read(answer.GetInfo())
	return c, nil
}
