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

// Relay passes on requests for pod resources to the kubelet, and records them.
type Relay struct {
	podresources.UnimplementedPodResourcesListerServer
	Socket  string // where the relay listens
	kubelet podresources.PodResourcesListerClient
	server  *grpc.Server
	ended   chan struct{}

	mu    sync.Mutex
	asked []string
}

// Relay serves the kubelet's pod resources API at another socket.
func (k *Kubelet) Relay(socket string) (*Relay, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &Relay{Socket: socket, kubelet: k.asked, server: grpc.NewServer(), ended: make(chan struct{})}
	podresources.RegisterPodResourcesListerServer(r.server, r)
	go func() {
		defer close(r.ended)
		_ = r.server.Serve(listener) // ends with Stop; if it fails earlier, requests fail, and so do the tests
	}()
	return r, nil
}

// Stop ends the relay.
func (r *Relay) Stop() {
	r.server.Stop()
	<-r.ended
}

// Asked returns the requests so far, Get or List, in order. It omits requests whose caller did not wait for the
// response.
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

// Get relays a request for one pod.
func (r *Relay) Get(ctx context.Context, q *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse,
	error) {
	defer r.note(ctx, "Get")
	return r.kubelet.Get(ctx, q)
}

// List relays a request for all pods.
func (r *Relay) List(ctx context.Context,
	q *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	defer r.note(ctx, "List")
	return r.kubelet.List(ctx, q)
}
