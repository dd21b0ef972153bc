// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin advertises resources to the node's kubelet, several in one process, and gives devices to the
// containers to which they are allocated, like the common RDMA device plugins. It runs in the process that starts it.
// It knows the kubelet's device plugin API (v1beta1), but neither pods nor what is tested.
package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin advertises resources until it is stopped.
type Plugin struct{ servers []*server }

// Start advertises resources to the kubelet on this node. The kubelet can allocate them shortly afterwards.
func Start(ctx context.Context, resources ...Resource) (*Plugin, error) {
	p := &Plugin{}
	for _, r := range resources {
		s, err := serve(r)
		if err == nil {
			p.servers = append(p.servers, s)
			err = s.register(ctx)
		}
		if err != nil {
			p.Stop()
			return nil, fmt.Errorf("cannot advertise %s: %w", r.Name, err)
		}
	}
	return p, nil
}

// Stop ends the plugin. Containers keep their devices.
func (p *Plugin) Stop() {
	for _, s := range p.servers {
		s.grpc.Stop()
		<-s.ended
	}
}

// server serves one resource, because the API needs a socket for each resource.
type server struct {
	api.UnimplementedDevicePluginServer
	resource Resource
	endpoint string
	grpc     *grpc.Server
	ended    chan struct{}
}

func serve(r Resource) (*server, error) {
	s := &server{
		resource: r,
		endpoint: strings.ReplaceAll(r.Name, "/", "_") + ".sock",
		grpc:     grpc.NewServer(),
		ended:    make(chan struct{}),
	}
	socket := filepath.Join(api.DevicePluginPath, s.endpoint)
	if err := os.RemoveAll(socket); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	api.RegisterDevicePluginServer(s.grpc, s)
	go func() {
		defer close(s.ended)
		_ = s.grpc.Serve(listener) // ends with Stop; if it fails earlier, the resource is missing, and the tests fail
	}()
	return s, nil
}

// register registers the resource with the kubelet. The kubelet calls back before it responds.
func (s *server) register(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: s.endpoint, ResourceName: s.resource.Name, Options: &api.DevicePluginOptions{},
	}, grpc.WaitForReady(true))
	return err
}

// GetDevicePluginOptions requests no optional calls.
func (s *server) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once, because they never change.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	all := &api.ListAndWatchResponse{}
	for i := range s.resource.Count {
		all.Devices = append(all.Devices, &api.Device{ID: fmt.Sprintf("%d", i), Health: api.Healthy})
	}
	if err := stream.Send(all); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate returns the resource's device files for each container, whichever of the resource's devices the kubelet
// allocated.
func (s *server) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range request.GetContainerRequests() {
		container := &api.ContainerAllocateResponse{}
		for _, path := range s.resource.Devices {
			container.Devices = append(container.Devices, &api.DeviceSpec{
				HostPath: path, ContainerPath: path, Permissions: s.resource.Permissions,
			})
		}
		for _, name := range s.resource.CDIDevices {
			container.CdiDevices = append(container.CdiDevices, &api.CDIDevice{Name: name})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, container)
	}
	return answer, nil
}
