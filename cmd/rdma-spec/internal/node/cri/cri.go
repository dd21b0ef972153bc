// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cri lists the running containers on a node. It uses CRI, the interface between the kubelet and the container
// runtimes, and returns the facts about each container on which a decision of package policy depends.
//
// It makes no decisions. It reads a container's devices from the OCI spec in the runtime's verbose status, which is
// what an NRI plugin sees.
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

// Identity names a container runtime that answers.
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

// ErrLate means that a runtime did not answer in time.
var ErrLate = errors.New("the runtime did not respond in time")

const (
	// AnswersWithin is how long a runtime may take to say its version where another one has answered, unless its node
	// is known to be slow.
	AnswersWithin = 2 * time.Second
	// alone is how many times as long it may take where no other has answered: there is nobody else to ask.
	alone = 5
)

func connect(ctx context.Context, socket string) (*Runtime, error) {
	tried, err := localrpc.Dial(ctx, socket) // gRPC hides the kernel's reason
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", socket, ErrLate)
	} else if err != nil {
		return nil, fmt.Errorf("cannot connect to the runtime at %s: %w", socket, files.Cause(err))
	}
	_ = tried.Close() // nothing is lost with it
	conn, err := localrpc.NewClient(localrpc.Dialer(socket))
	if err != nil {
		return nil, err
	}
	r := &Runtime{conn: conn, api: runtime.NewRuntimeServiceClient(conn)}
	version, err := r.api.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		_ = conn.Close() // nothing is lost with it
		return nil, fmt.Errorf("%s: %w", socket, plainError(err))
	}
	r.Identity = Identity{version.GetRuntimeName(), version.GetRuntimeVersion(), socket}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() { _ = r.conn.Close() } // nothing is lost with it

// plainError puts gRPC's error in an administrator's words.
func plainError(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return ErrLate
	case codes.Unavailable:
		return fmt.Errorf("the runtime cannot be reached: %s", localrpc.Reason(err))
	case codes.Unimplemented:
		return errors.New("it does not serve CRI: if it is containerd, remove cri from disabled_plugins")
	}
	return errors.New(s.Message())
}

// Where else an endpoint may be named, as for crictl.
const (
	endpointVariable = "CONTAINER_RUNTIME_ENDPOINT"
	crictlConfig     = "/etc/crictl.yaml"
)

// Connect connects to the runtimes that serve CRI on a node: to the one at the endpoint, /path or unix:///path. Without
// an endpoint, CONTAINER_RUNTIME_ENDPOINT names it, else /etc/crictl.yaml below the root, whose path is below the root
// as well. Where nothing names one, all usual places below the root are tried at once; skipped has an error for each
// that does not serve CRI, and for each that takes longer than that time although another one serves. The caller closes
// the runtimes.
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
	answered := make(chan struct{}, len(sockets)) // receives for each that serves CRI
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

// namedSocket returns the socket that somebody names; "" where nobody does.
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

// path returns the path of an endpoint that somebody names.
func path(endpoint, by string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("%s has %q: write a socket's path, such as unix:///run/containerd/containerd.sock", by,
			endpoint)
	}
	return path, nil
}

// usualSockets returns the usual places below a root: containerd itself, CRI-O, and the containerds that platforms
// bring.
func usualSockets(root string) []string {
	return places.Sockets(root, slices.Insert(slices.Clone(places.Containerds), 1, places.CRIO)...)
}
