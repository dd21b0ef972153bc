// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cri asks a container runtime, through the interface that the kubelet uses, which containers run, and tells of each what a
// decision about it depends on, in the words of package policy.
//
// It decides nothing. What a container holds is read from the OCI spec that the runtime gives in its verbose status: so it is what an
// NRI plugin sees of it.
package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/plugin/rpcerror"
)

// places are where runtimes usually serve CRI, with whose it is.
var places = []string{
	"run/containerd/containerd.sock",               // containerd itself
	"run/crio/crio.sock",                           // CRI-O
	"run/k3s/containerd/containerd.sock",           // k3s, RKE2
	"var/snap/microk8s/common/run/containerd.sock", // MicroK8s
	"run/k0s/containerd.sock",                      // k0s
}

// largestAnswer is what the kubelet takes.
const largestAnswer = 16 << 20

// Runtime is a container runtime that answers.
type Runtime struct {
	Name, Version string // as it calls itself: containerd, cri-o
	Socket        string
	conn          *grpc.ClientConn
	api           runtime.RuntimeServiceClient
}

// Connect connects to the runtime at an endpoint, /path or unix:///path. Without one, it is the first of the usual places below a root
// at which a runtime serves CRI. The error says where it was looked for.
func Connect(ctx context.Context, endpoint, root string) (*Runtime, error) {
	if endpoint != "" {
		return connect(ctx, strings.TrimPrefix(endpoint, "unix://"))
	}
	var tried error
	for _, p := range places {
		socket := filepath.Join(root, p)
		info, err := os.Stat(socket)
		if !errors.Is(err, fs.ErrPermission) && (err != nil || info.Mode().Type() != fs.ModeSocket) {
			continue
		}
		r, err := connect(ctx, socket)
		if err == nil {
			return r, nil
		}
		if tried != nil {
			err = fmt.Errorf("%w; %w", tried, err)
		}
		tried = err
	}
	if tried == nil {
		tried = fmt.Errorf("no container runtime's socket at %s: name it with --runtime-endpoint", strings.Join(below(root), ", "))
	}
	return nil, tried
}

func below(root string) []string {
	var sockets []string
	for _, p := range places {
		sockets = append(sockets, filepath.Join(root, p))
	}
	return sockets
}

// reach says in the kernel's words why a socket cannot be connected to. gRPC's have more of its own inside than of the cause.
func reach(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("cannot connect to the runtime at %s: %w", socket, oserror.Reason(err))
	}
	return conn.Close()
}

func connect(ctx context.Context, socket string) (*Runtime, error) {
	if err := reach(ctx, socket); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///runtime",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)),
	)
	if err != nil {
		return nil, err
	}
	r := &Runtime{Socket: socket, conn: conn, api: runtime.NewRuntimeServiceClient(conn)}
	version, err := r.api.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		_ = conn.Close() // nothing is lost with it
		return nil, fmt.Errorf("%s: %w", socket, plain(err))
	}
	r.Name, r.Version = version.GetRuntimeName(), version.GetRuntimeVersion()
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() { _ = r.conn.Close() } // nothing is lost with it

// plain puts gRPC's error in the words of whoever runs the node.
func plain(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded:
		return errors.New("the runtime did not answer in time")
	case codes.Unavailable:
		return fmt.Errorf("the runtime cannot be reached: %s", rpcerror.Reason(err))
	case codes.Unimplemented:
		return errors.New("it does not serve CRI: if it is containerd, see that cri is not in disabled_plugins")
	}
	return errors.New(s.Message())
}
