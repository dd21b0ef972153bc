// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package localrpc calls daemons with gRPC over their Unix sockets, and makes the errors of these calls readable. The
// package does not depend on a particular daemon.
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

// MaxMessage is the maximum size of a request or response, in bytes. containerd's client and the kubelet have the same
// limit.
const MaxMessage = 16 << 20

// Dial connects to a socket.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// Dialer returns a function that connects to a socket.
func Dialer(socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return Dial(ctx, socket) }
}

// NewClient returns a client that connects at its first call. To connect, the client uses the given function, for
// example a function from Dialer.
func NewClient(dial func(context.Context) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a Unix socket is local
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
	)
	return grpc.NewClient("passthrough:///daemon", options...)
}

// Reason returns the server's message, or the reason why the server could not be reached, on one line. Reason removes
// the text that gRPC adds to a connection error. An example of the result is "dial unix
// /run/containerd/containerd.sock: connect: connection refused". If a future version of gRPC words the error
// differently, Reason returns the whole error.
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
