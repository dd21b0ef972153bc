// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/breaker"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// However often the calls about containers that run fail, those about containers that are created are made.
func TestNewAPIs_separateBreakers(t *testing.T) {
	socket := filepath.Join(scratch.Dir(t), "containerd.sock")
	if err := syscall.Mknod(socket, syscall.S_IFSOCK|0o600, 0); err != nil { // nobody listens
		t.Fatal(err)
	}
	clients := newAPIs(options{root: scratch.Dir(t),
		containerd: socket, podResourcesSocket: "/nonexistent.sock"},
		silent())
	for range 2 * breaker.Failures {
		if _, err := clients.beside.Read(t.Context(), "a"); err == nil {
			t.Fatal("a spec was read")
		}
	}
	if !clients.beside.Failing() {
		t.Error("the failing API is not left alone")
	}
	if clients.specs.Failing() {
		t.Error("it is left alone for containers that are created, too")
	}
	for range breaker.Failures {
		_, _ = clients.specs.Confirm(t.Context(), "a", spec.Grant{IPCLock: spec.IPCLockYes})
	}
	if !clients.specs.Failing() {
		t.Error("failures of creations are not counted")
	}
}
