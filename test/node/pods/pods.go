// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pods runs pods through CRI, as a kubelet would, and runs the daemon of a container runtime. It knows neither
// how the runtime is configured nor what is tested.
package pods

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
)

// Client is a client of a container runtime that has the node's images.
type Client struct {
	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
}

// quickly makes the client reconnect as soon as the runtime is back. A runtime that has just started takes a while to
// respond.
var quickly = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond},
	MinConnectTimeout: 10 * time.Second,
}

// NewClient returns a client of the runtime at a Unix socket. The runtime need not listen yet.
func NewClient(socket string) (*Client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(quickly))
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, runtime: cri.NewRuntimeServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() { _ = c.conn.Close() } // nothing is lost with it

// Conn returns the connection, for the runtime's other services.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// CRI returns a client of the runtime's whole CRI.
func (c *Client) CRI() cri.RuntimeServiceClient { return c.runtime }

// Answers reports whether the runtime already serves CRI.
func (c *Client) Answers(ctx context.Context) bool {
	_, err := c.runtime.Version(ctx, &cri.VersionRequest{})
	return err == nil
}

// Pod is the part of a pod that its author writes.
type Pod struct {
	Namespace   string // "" means default
	Name        string // "" means a unique name
	Labels      map[string]string
	Annotations map[string]string
	Handler     string // runtime handler
	Privileged  bool   // it can have privileged containers
	OwnNetwork  bool   // it has its own network namespace, set up by CNI; otherwise, it is in the node's
}

// Container is the part of a container that the pod's author sets, and what the kubelet adds for device plugins.
type Container struct {
	Name        string   // "" means main
	Image       string   // an imported image, run without the node's programs; "" means busybox with them
	Args        []string // if empty, it sleeps forever, or runs the image's command
	Target      string   // the ID of a container whose processes it sees, like an ephemeral container
	Env         map[string]string
	User        int64
	Devices     []Device // as a device plugin injects them
	CDIDevices  []string // qualified names, as a device plugin or a DRA driver returns them
	Privileged  bool
	MemoryLimit int64 // in bytes; 0 means no limit
	AddCaps     []string
	DropCaps    []string
	NoNewPrivs  bool
	Mounts      []Mount // in addition to the node's programs, if it has them
}

// Mount is a file or directory of the node, and its path in a container.
type Mount struct {
	Host, Container string
	Writable        bool
}

// programs are the node's programs, and their paths in a container.
var programs = []Mount{
	{Host: "/usr", Container: "/usr"}, {Host: "/usr/lib", Container: "/lib"}, {Host: "/usr/lib64", Container: "/lib64"},
	{Host: "/etc", Container: "/etc"},
}

// Sandbox is a running pod.
type Sandbox struct {
	ID     string
	client *Client
	config *cri.PodSandboxConfig
}

var podNumber atomic.Int64

// RunPod creates a pod's sandbox.
func (c *Client) RunPod(ctx context.Context, pod Pod) (*Sandbox, error) {
	uid := fmt.Sprintf("pod-%d-%d", os.Getpid(), podNumber.Add(1))
	name := first(pod.Name, uid)
	namespace := first(pod.Namespace, "default")
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: uid},
		Labels: labels(pod.Labels,
			"io.kubernetes.pod.name", name, "io.kubernetes.pod.namespace", namespace, "io.kubernetes.pod.uid", uid),
		Annotations:  pod.Annotations,
		LogDirectory: filepath.Join("/run/pod-logs", uid),
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				Privileged:       pod.Privileged,
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
			},
		},
	}
	if pod.OwnNetwork {
		config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
	}
	answer, err := c.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: pod.Handler})
	if err != nil {
		return nil, err
	}
	return &Sandbox{ID: answer.PodSandboxId, client: c, config: config}, nil
}

// labels adds the labels that the kubelet sets. They are the only source from which CRI-O knows a container's name.
func labels(own map[string]string, keysAndValues ...string) map[string]string {
	all := maps.Clone(own)
	if all == nil {
		all = map[string]string{}
	}
	for pair := range slices.Chunk(keysAndValues, 2) {
		all[pair[0]] = pair[1]
	}
	return all
}

// Remove stops a pod, and removes it with its containers.
func (s *Sandbox) Remove(ctx context.Context) error {
	runtime := s.client.runtime
	// Kill each container first, because CRI-O gives the containers of a stopped pod ten seconds to end.
	left, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		PodSandboxId: s.ID, State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return err
	}
	for _, c := range left.GetContainers() {
		if _, err := runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.GetId()}); err != nil {
			return err
		}
	}
	// CRI-O gives a pod's own container until the call's deadline to end, or ten seconds if the call has no deadline.
	if _, err := runtime.StopPodSandbox(context.WithoutCancel(ctx), &cri.StopPodSandboxRequest{PodSandboxId: s.ID}); err != nil {
		return err
	}
	_, err = runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// Run creates and starts a container, and returns its ID.
func (s *Sandbox) Run(ctx context.Context, ctr Container) (string, error) {
	id, err := s.Create(ctx, ctr)
	if err != nil {
		return "", err
	}
	_, err = s.client.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	return id, err
}

// Create creates a container. A container without its own image has the node's programs at their paths. The error is
// the one that a kubelet would get.
func (s *Sandbox) Create(ctx context.Context, ctr Container) (string, error) {
	name := first(ctr.Name, "main")
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Labels:   labels(s.config.Labels, "io.kubernetes.container.name", name),
		Image: &cri.ImageSpec{Image: first(ctr.Image, node.ImageName("busybox")), UserSpecifiedImage: first(ctr.Image,
			node.ImageName("busybox"))},
		Command: ctr.Args,
		LogPath: name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: ctr.MemoryLimit},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				Privileged: ctr.Privileged,
				NoNewPrivs: ctr.NoNewPrivs,
				RunAsUser:  &cri.Int64Value{Value: ctr.User},
				Capabilities: &cri.Capability{
					AddCapabilities: ctr.AddCaps, DropCapabilities: ctr.DropCaps,
				},
				NamespaceOptions: &cri.NamespaceOption{
					Network: s.config.Linux.SecurityContext.NamespaceOptions.Network, Pid: cri.NamespaceMode_CONTAINER,
				},
			},
		},
	}
	mounts := ctr.Mounts
	if ctr.Image == "" {
		mounts = slices.Concat(mounts, programs)
	}
	if len(ctr.Args) == 0 && ctr.Image == "" {
		config.Command = []string{"/bin/busybox", "sleep", "1000000"}
	}
	if ctr.Target != "" {
		namespaces := config.Linux.SecurityContext.NamespaceOptions
		namespaces.Pid = cri.NamespaceMode_TARGET
		namespaces.TargetId = ctr.Target
	}
	for _, key := range slices.Sorted(maps.Keys(ctr.Env)) {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: key, Value: []byte(ctr.Env[key])})
	}
	for _, d := range ctr.Devices {
		config.Devices = append(config.Devices, &cri.Device{HostPath: d.Host, ContainerPath: d.Container, Permissions: "rwm"})
	}
	for _, name := range ctr.CDIDevices {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
	}
	for _, m := range mounts {
		config.Mounts = append(config.Mounts, &cri.Mount{ContainerPath: m.Container, HostPath: m.Host, Readonly: !m.Writable})
	}
	answer, err := s.client.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: s.ID, Config: config, SandboxConfig: s.config,
	})
	return answer.GetContainerId(), err
}

// PID returns the process ID, on the node, of a container's first process.
func (c *Client) PID(ctx context.Context, id string) (int, error) {
	answer, err := c.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(answer.Info["info"], `"pid":`)
	number, _, _ := strings.Cut(after, ",")
	if !found {
		return 0, fmt.Errorf("the runtime reports no pid of container %s", id)
	}
	return strconv.Atoi(strings.TrimSpace(number))
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// RemoveContainer removes a container, even if it is running. It kills the container first, because CRI-O gives it ten
// seconds to end otherwise.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	if _, err := c.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	_, err := c.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return err
}
