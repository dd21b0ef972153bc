// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// kubelet serves the pod resources API as the kubelet does, over a socket.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	get  func(ctx context.Context, namespace, pod string) (*podresources.PodResources, error) // nil: it has no Get
	list func() ([]*podresources.PodResources, error)

	gets, lists atomic.Int64
}

func (k *kubelet) Get(ctx context.Context,
	r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	k.gets.Add(1)
	if k.get == nil {
		return k.UnimplementedPodResourcesListerServer.Get(ctx, r)
	}
	pod, err := k.get(ctx, r.GetPodNamespace(), r.GetPodName())
	return &podresources.GetPodResourcesResponse{PodResources: pod}, err
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	k.lists.Add(1)
	pods, err := k.list()
	return &podresources.ListPodResourcesResponse{PodResources: pods}, err
}

// newSocket gives a path for a socket, short enough for one.
func newSocket(t *testing.T) string { return filepath.Join(scratch.Dir(t), "s") }

// serve starts a kubelet. What is returned stops it; it is stopped at the end of the test in any case.
func serve(t *testing.T, socket string, k *kubelet) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	must.Succeed(t, err)
	return serveOn(t, listener, k)
}

// clientOf is a client of a kubelet, with a budget that is not what is tested.
func clientOf(t *testing.T, k *kubelet) *Client {
	t.Helper()
	socket := newSocket(t)
	serve(t, socket, k)
	return New(Options{Socket: socket, Budget: aLongTime})
}

// inMemory is a client of a kubelet that is reached without a socket, so that time need not be real.
func inMemory(t *testing.T, k *kubelet) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	serveOn(t, listener, k)
	c := New(Options{})
	c.dial = listener.DialContext
	return c
}

func serveOn(t *testing.T, listener net.Listener, k *kubelet) (stop func()) {
	t.Helper()
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		server.Stop()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// pod makes what a kubelet says of a pod: each container with the names of its resources, and its claims as claim/NAME.
func pod(namespace, name string, containers map[string][]string) *podresources.PodResources {
	p := &podresources.PodResources{Namespace: namespace, Name: name}
	for container, names := range containers {
		c := &podresources.ContainerResources{
			Name:   container,
			CpuIds: []int64{2, 3},
		}
		for _, n := range names {
			if claim, ok := strings.CutPrefix(n, "claim/"); ok {
				c.DynamicResources = append(c.DynamicResources, &podresources.DynamicResource{ClaimName: claim,
					ClaimNamespace: namespace})
				continue
			}
			c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: n, DeviceIds: []string{"0"}})
		}
		p.Containers = append(p.Containers, c)
	}
	return p
}

// knows is a Get that knows the given pods.
func knows(pods ...*podresources.PodResources) func(context.Context, string,
	string) (*podresources.PodResources, error) {
	return func(_ context.Context, namespace, name string) (*podresources.PodResources, error) {
		for _, p := range pods {
			if p.GetNamespace() == namespace && p.GetName() == name {
				return p, nil
			}
		}
		return nil, notFound(namespace, name)
	}
}
