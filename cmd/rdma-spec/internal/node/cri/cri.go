// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cri lists the running containers on a node. It uses CRI, the interface between the kubelet and the container
// runtimes. For each container, the package returns the facts on which the decisions of package policy depend.
//
// The package makes no decisions. It reads a container's devices from the OCI spec in the runtime's verbose status. An
// NRI plugin sees the same devices.
package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Identity identifies a container runtime that responds.
type Identity struct {
	// Name is the name that the runtime reports: containerd or cri-o.
	Name string `json:"name"`
	// Version is the runtime's version.
	Version string `json:"version"`
	// Socket is the path of the runtime's socket.
	Socket string `json:"socket"`
}

// Runtime is a connection to a container runtime.
type Runtime struct {
	Identity
	conn *grpc.ClientConn
	api  runtime.RuntimeServiceClient
}

// ErrLate means that a runtime did not respond in time.
var ErrLate = errors.New("the runtime did not respond in time")

const (
	// AnswersWithin is the default timeout for a runtime's version if another runtime has responded.
	AnswersWithin = 2 * time.Second
	// alone is the factor by which the timeout increases if no other runtime has responded.
	alone = 5
)

func connect(ctx context.Context, socket string) (*Runtime, error) {
	tried, err := localrpc.Dial(ctx, socket) // gRPC hides the kernel's reason
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", socket, ErrLate)
	} else if err != nil {
		return nil, fmt.Errorf("cannot connect to the runtime at %s: %w", socket, files.Cause(err))
	}
	_ = tried.Close() // an error loses no data
	conn, err := localrpc.NewClient(localrpc.Dialer(socket))
	if err != nil {
		return nil, err
	}
	r := &Runtime{conn: conn, api: runtime.NewRuntimeServiceClient(conn)}
	version, err := r.api.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		_ = conn.Close() // an error loses no data
		return nil, fmt.Errorf("%s: %w", socket, plainError(err))
	}
	r.Identity = Identity{version.GetRuntimeName(), version.GetRuntimeVersion(), socket}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() { _ = r.conn.Close() } // an error loses no data

// plainError converts a gRPC error to an error for administrators.
func plainError(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return ErrLate
	case codes.Unavailable:
		return fmt.Errorf("the runtime cannot be reached: %s", localrpc.Reason(err))
	case codes.Unimplemented:
		return errors.New("the runtime does not provide the CRI: if the runtime is containerd, remove cri from " +
			"disabled_plugins")
	}
	return errors.New(s.Message())
}

// Other sources of the endpoint, as for crictl.
const (
	endpointVariable = "CONTAINER_RUNTIME_ENDPOINT"
	crictlConfig     = "/etc/crictl.yaml"
)

// Connect connects to the runtimes that serve CRI on a node. If endpoint is set to /path or unix:///path, it connects
// only to this runtime. Otherwise, the endpoint comes from CONTAINER_RUNTIME_ENDPOINT, or else from /etc/crictl.yaml
// under the root, whose path is also under the root. Without any endpoint, Connect tries all usual sockets under the
// root at once. skipped contains an error for each runtime that does not serve CRI, and for each that exceeds the
// timeout although another runtime responded. The caller must close the runtimes.
func Connect(ctx context.Context, endpoint, root string, within time.Duration) (runtimes []*Runtime,
	skipped []error, err error) {
	socket, err := namedSocket(endpoint, root)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, alone*within)
	defer cancel()
	if socket != "" {
		r, err := connect(ctx, socket)
		if err != nil {
			return nil, nil, err
		}
		return []*Runtime{r}, nil, nil
	}
	sockets := places.Present(usualSockets(root))
	if len(sockets) == 0 {
		return nil, nil, fmt.Errorf("no container runtime has a socket at %s: set --runtime-endpoint",
			strings.Join(usualSockets(root), ", "))
	}
	found := make([]*Runtime, len(sockets))
	failed := make([]error, len(sockets))
	answered := make(chan struct{}, len(sockets)) // receives for each runtime that serves CRI
	var all sync.WaitGroup
	for i, socket := range sockets {
		all.Go(func() {
			found[i], failed[i] = connect(ctx, socket)
			if failed[i] == nil {
				answered <- struct{}{}
			}
		})
	}
	enough := time.AfterFunc(within, func() {
		select {
		case <-answered:
			cancel()
		case <-ctx.Done():
		}
	})
	defer enough.Stop()
	all.Wait()
	runtimes = slices.DeleteFunc(found, func(r *Runtime) bool { return r == nil })
	skipped = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(runtimes) == 0 {
		together := skipped[0]
		for _, err := range skipped[1:] {
			together = fmt.Errorf("%w; %w", together, err)
		}
		return nil, nil, together
	}
	return runtimes, skipped, nil
}

// namedSocket returns the configured socket; "" if no socket is configured.
func namedSocket(endpoint, root string) (socket string, err error) {
	if endpoint != "" {
		return path(endpoint, "--runtime-endpoint")
	}
	endpoint = os.Getenv(endpointVariable)
	if endpoint != "" {
		return path(endpoint, endpointVariable)
	}
	var config struct {
		Endpoint string `json:"runtime-endpoint"`
	}
	file := files.Below(root, crictlConfig)
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, &config)
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s: %w", file, err)
	case config.Endpoint == "":
		return "", nil
	}
	socket, err = path(config.Endpoint, file)
	return files.Below(root, socket), err
}

// path returns the path of a configured endpoint.
func path(endpoint, by string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("%s is set to %q: specify the path of a socket, such as unix:///run/containerd/containerd.sock",
			by, endpoint)
	}
	return path, nil
}

// usualSockets returns the usual sockets under a root: those of containerd, CRI-O, and the containerds of platforms.
func usualSockets(root string) []string {
	return places.Sockets(root, slices.Insert(slices.Clone(places.Containerds), 1, places.CRIO)...)
}
