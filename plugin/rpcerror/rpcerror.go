// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rpcerror reads the errors of gRPC calls to daemons of the node.
package rpcerror

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
)

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
