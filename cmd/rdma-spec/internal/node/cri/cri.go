// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cri lists the containers that run on a node. It asks the container runtimes through the interface that the
// kubelet uses, and gives for each container what a decision about it depends on, in the words of package policy.
//
// It decides nothing. What a container holds is read from the OCI spec in the runtime's verbose status, which is what
// an NRI plugin sees.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/plugin/rpcerror"
)

// Identity names a container runtime that answers.
type Identity struct {
	Name    string `json:"name"` // as it calls itself: containerd, cri-o
	Version string `json:"version"`
	Socket  string `json:"socket"`
}

// Runtime is a connection to a container runtime.
type Runtime struct {
	Identity
	conn *grpc.ClientConn
	api  runtime.RuntimeServiceClient
}

// ErrLate means that a runtime did not answer in time.
var ErrLate = errors.New("the runtime did not answer in time")

const (
	// AnswersWithin is how long a runtime may take to say its version where another one has answered, unless its node
	// is known to be slow.
	AnswersWithin = 2 * time.Second
	// alone is how many times as long it may take where no other has answered: there is nobody else to ask.
	alone = 5
	// largestAnswer is what the kubelet takes.
	largestAnswer = 16 << 20
)

func connect(ctx context.Context, socket string) (*Runtime, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	tried, err := dial(ctx, "") // gRPC hides the kernel's reason
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the runtime at %s: %w", socket, oserror.Reason(err))
	}
	_ = tried.Close() // nothing is lost with it
	conn, err := grpc.NewClient("passthrough:///runtime",
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)),
	)
	if err != nil {
		return nil, err
	}
	r := &Runtime{conn: conn, api: runtime.NewRuntimeServiceClient(conn)}
	version, err := r.api.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		_ = conn.Close() // nothing is lost with it
		return nil, fmt.Errorf("%s: %w", socket, plain(err))
	}
	r.Identity = Identity{version.GetRuntimeName(), version.GetRuntimeVersion(), socket}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() { _ = r.conn.Close() } // nothing is lost with it

// plain puts gRPC's error in an administrator's words.
func plain(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return ErrLate
	case codes.Unavailable:
		return fmt.Errorf("the runtime cannot be reached: %s", rpcerror.Reason(err))
	case codes.Unimplemented:
		return errors.New("it does not serve CRI: if it is containerd, see that cri is not in disabled_plugins")
	}
	return errors.New(s.Message())
}
