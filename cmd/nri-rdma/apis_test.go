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
func TestFailuresOfRepairLeaveCreationsAlone(t *testing.T) {
	socket := filepath.Join(scratch.Folder(t), "containerd.sock")
	if err := syscall.Mknod(socket, syscall.S_IFSOCK|0o600, 0); err != nil { // nobody listens
		t.Fatal(err)
	}
	creation, repair := newAPIs(options{root: scratch.Folder(t),
		containerd: socket, podResourcesSocket: "/nonexistent.sock"},
		silent())
	for range 2 * breaker.Failures {
		if _, err := repair.specs.Read(t.Context(), "a"); err == nil {
			t.Fatal("a spec was read")
		}
		if _, _, err := repair.resources.Names(t.Context(), "", "ml", "train-0", "main"); err == nil {
			t.Fatal("the kubelet has answered")
		}
	}
	if !repair.specs.Failing() || !repair.resources.Failing() {
		t.Error("the failing APIs are not left alone")
	}
	if creation.specs.Failing() || creation.resources.Failing() {
		t.Error("they are left alone for containers that are created, too")
	}
	for range breaker.Failures {
		_, _ = creation.specs.Confirm(t.Context(), "a", spec.Grant{IPCLock: spec.IPCLockYes})
	}
	if !creation.specs.Failing() {
		t.Error("failures of creations are not counted")
	}
}
