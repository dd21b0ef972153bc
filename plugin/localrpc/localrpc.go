// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package localrpc calls daemons by gRPC on their Unix sockets, and reads the errors of such calls. It knows no daemon.
package localrpc

import (
	"context"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// MaxMessage bounds a request and an answer, in bytes. It is what containerd's own client and the kubelet take.
const MaxMessage = 16 << 20

// Dial connects to a socket.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// Dialer returns a function that connects to a socket.
func Dialer(socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return Dial(ctx, socket) }
}

// NewClient returns a client that connects with the first call, by such a function as Dialer returns.
func NewClient(dial func(context.Context) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel says who listens
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
	)
	return grpc.NewClient("passthrough:///daemon", options...)
}

// Reason returns what the server has said, or why it could not be reached, in one line and without what gRPC puts
// around the latter: "dial unix /run/containerd/containerd.sock: connect: connection refused". Where gRPC words it
// otherwise one day, all of it is given.
func Reason(err error) string {
	message := status.Convert(err).Message()
	quoted, ours := strings.CutPrefix(message, "connection error: desc = ")
	if !ours {
		return message
	}
	inner, err := strconv.Unquote(quoted)
	if err != nil {
		return message
	}
	return strings.TrimPrefix(inner, "transport: Error while dialing: ")
}
