// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package critest provides a fake container runtime's side of CRI for tests, in the test's process, behind a real
// socket. It responds to the requests of package cri in containerd's format.
package critest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Container is a container of the runtime. Each container has its own pod.
type Container struct {
	Namespace, Pod, Name, ID string
	Handler                  string
	Labels, Annotations      map[string]string
	PID                      int
	Started                  time.Time
	Spec                     specs.Spec
	Exited                   bool
	ExitCode                 int32
	Gone                     bool   // it is listed, but its status is not found
	Info                     string // its verbose status, instead of one made from PID and Spec
	Fails                    error  // the error for a request about its status
	Hangs                    bool   // a request about its status gets no response
}

// Runtime is a runtime that serves CRI.
type Runtime struct {
	runtime.UnimplementedRuntimeServiceServer
	Socket string

	name, version string
	takes         time.Duration
	mu            sync.Mutex
	containers    []Container
	asked         int
}

// Options describe the runtime. The zero Options are those of a current containerd, whose socket is in a temporary
// directory.
type Options struct {
	Name, Version string
	Takes         time.Duration      // how long it takes to report its version
	Root, Path    string             // the path of the socket, relative to Root
	NoCRI         bool               // it does not serve CRI
	Also          func(*grpc.Server) // registers additional services
}

// Serve starts a runtime, which ends with the test.
func Serve(t testing.TB, o Options, containers ...Container) *Runtime {
	t.Helper()
	if o.Name == "" {
		o.Name = "containerd"
		o.Version = "v2.4.2"
	}
	if o.Path == "" {
		o.Path = "cri.sock"
	}
	if o.Root == "" {
		o.Root = scratch.Dir(t)
	}
	r := &Runtime{Socket: filepath.Join(o.Root, o.Path), name: o.Name, version: o.Version,
		takes: o.Takes, containers: containers}
	if err := os.MkdirAll(filepath.Dir(r.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if !o.NoCRI {
		runtime.RegisterRuntimeServiceServer(server, r)
	}
	if o.Also != nil {
		o.Also(server)
	}
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	return r
}

// Asked returns how many requests about a single container the runtime has received.
func (r *Runtime) Asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Version implements CRI.
func (r *Runtime) Version(ctx context.Context, _ *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
	}
	return &runtime.VersionResponse{Version: "0.1.0", RuntimeName: r.name, RuntimeVersion: r.version,
		RuntimeApiVersion: "v1"}, nil
}

// ListPodSandbox implements CRI.
func (r *Runtime) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse,
	error) {
	answer := &runtime.ListPodSandboxResponse{}
	for _, c := range r.containers {
		answer.Items = append(answer.Items, &runtime.PodSandbox{
			Id: "pod-of-" + c.ID, Metadata: &runtime.PodSandboxMetadata{Name: c.Pod, Namespace: c.Namespace},
			Labels: c.Labels, Annotations: c.Annotations, RuntimeHandler: c.Handler,
		})
	}
	return answer, nil
}

// ListContainers implements CRI.
func (r *Runtime) ListContainers(_ context.Context,
	request *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	answer := &runtime.ListContainersResponse{}
	for _, c := range r.containers {
		if wanted := request.GetFilter().GetState(); wanted == nil || wanted.GetState() == c.state() {
			answer.Containers = append(answer.Containers, &runtime.Container{
				Id: c.ID, PodSandboxId: "pod-of-" + c.ID, Metadata: &runtime.ContainerMetadata{Name: c.Name}, State: c.state(),
			})
		}
	}
	return answer, nil
}

// ContainerStatus implements CRI.
func (r *Runtime) ContainerStatus(ctx context.Context,
	request *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	r.mu.Lock()
	r.asked++
	r.mu.Unlock()
	for _, c := range r.containers {
		if c.ID != request.GetContainerId() || c.Gone {
			continue
		}
		if c.Fails != nil {
			return nil, c.Fails
		}
		if c.Hangs {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		answer := &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{Id: c.ID,
			State: c.state(), ExitCode: c.ExitCode}}
		if !c.Started.IsZero() {
			answer.Status.StartedAt = c.Started.UnixNano()
		}
		if request.GetVerbose() {
			text, err := c.info()
			if err != nil {
				return nil, err
			}
			answer.Info = map[string]string{"info": text}
		}
		return answer, nil
	}
	return nil, status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found",
		request.GetContainerId())
}

func (c Container) state() runtime.ContainerState {
	if c.Exited {
		return runtime.ContainerState_CONTAINER_EXITED
	}
	return runtime.ContainerState_CONTAINER_RUNNING
}

// info returns the verbose status, with the keys that containerd writes.
func (c Container) info() (string, error) {
	if c.Info != "" {
		return c.Info, nil
	}
	text, err := json.Marshal(map[string]any{
		"sandboxID": "pod-of-" + c.ID, "pid": c.PID, "removing": false, "snapshotter": "overlayfs",
		"runtimeType": "io.containerd.runc.v2", "config": map[string]any{"metadata": map[string]any{"name": c.Name}},
		"runtimeSpec": c.Spec,
	})
	return string(text), err
}
