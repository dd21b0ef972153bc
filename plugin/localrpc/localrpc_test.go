// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package localrpc_test

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// gRPC itself says these, so that a release that words them otherwise is noticed.
func TestReasonOfNoConnection(t *testing.T) {
	dir := scratch.Dir(t)
	missing, refusing := filepath.Join(dir, "missing.sock"), filepath.Join(dir, "refusing.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: refusing, Net: "unix"})
	must.Succeed(t, err)
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	for socket, want := range map[string]string{
		missing:  "dial unix " + missing + ": connect: no such file or directory",
		refusing: "dial unix " + refusing + ": connect: connection refused",
	} {
		conn, err := localrpc.NewClient(localrpc.Dialer(socket))
		must.Succeed(t, err)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		_ = conn.Close()
		if got := localrpc.Reason(err); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestReason(t *testing.T) {
	for want, err := range map[string]error{
		"shutting down":               status.Error(codes.Unavailable, "shutting down"),
		"no gRPC":                     errors.New("no gRPC"),
		"connection error: desc = 12": status.Error(codes.Unavailable, "connection error: desc = 12"),
		"handshake failed":            status.Error(codes.Unavailable, `connection error: desc = "handshake failed"`),
	} {
		if got := localrpc.Reason(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
