// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Relay stands between the kubelet and who asks it for pod resources. It notes what is asked.
type Relay struct {
	podresources.UnimplementedPodResourcesListerServer
	Socket  string // where it is asked
	kubelet podresources.PodResourcesListerClient
	server  *grpc.Server
	ended   chan struct{}

	mu    sync.Mutex
	asked []string
}

// Relay serves the kubelet's pod resources at another socket.
func (k *Kubelet) Relay(socket string) (*Relay, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &Relay{Socket: socket, kubelet: k.asked, server: grpc.NewServer(), ended: make(chan struct{})}
	podresources.RegisterPodResourcesListerServer(r.server, r)
	go func() {
		defer close(r.ended)
		_ = r.server.Serve(listener) // it ends with Stop; before, questions would fail and so would the tests
	}()
	return r, nil
}

// Stop ends the relay.
func (r *Relay) Stop() {
	r.server.Stop()
	<-r.ended
}

// Asked returns the questions so far, in order: Get or List. Those whose asker did not wait for the answer are left
// out.
func (r *Relay) Asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

func (r *Relay) note(ctx context.Context, question string) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, question)
}

// Get relays a question for one pod.
func (r *Relay) Get(ctx context.Context, q *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse,
	error) {
	defer r.note(ctx, "Get")
	return r.kubelet.Get(ctx, q)
}

// List relays a question for all pods.
func (r *Relay) List(ctx context.Context,
	q *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	defer r.note(ctx, "List")
	return r.kubelet.List(ctx, q)
}
