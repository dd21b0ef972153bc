// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Another process reads HCAs as this one does.
func TestHCAsAreReadApart(t *testing.T) {
	for name, make := range hcatest.All {
		root := make(t)
		listed, err := hca.List(root)
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]hca.HCA{}, map[string]hca.HCA{}
		var names []string
		for _, h := range listed.HCAs {
			names = append(names, h.Name)
			want[h.Name] = hca.Read(root, h.Name)
		}
		for h := range node.ProcessReader(root)(names) {
			got[h.Name] = h
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
			cmpopts.IgnoreFields(hca.HCA{}, "Place")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// One HCA that does not answer does not keep the others, and its reader is left behind.
func TestHCAThatDoesNotAnswerApart(t *testing.T) {
	root := hcatest.V100(t)
	unblock := hcatest.Block(t, root, port+"state")
	answers := node.ProcessReader(root)([]string{"mlx5_0", "mlx5_1"})
	if h := <-answers; h.Name != "mlx5_1" || !h.Active() {
		t.Errorf("%+v", h)
	}
	select {
	case h := <-answers:
		t.Errorf("%+v", h)
	default:
	}
	unblock()
	if h := <-answers; h.Name != "mlx5_0" || !h.Active() {
		t.Errorf("%+v", h)
	}
	if _, more := <-answers; more {
		t.Error("there are more than two")
	}
}

// Who reads in a container leaves no zombie to a first process that waits for none.
func TestReaderOfHCAsHasEnded(t *testing.T) {
	names := []string{"mlx5_0", "mlx5_1"}
	answers := node.ProcessReader(hcatest.V100(t))(names)
	for range names {
		<-answers
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("after the last answer there is a process to wait for: %v", err)
	}
}

// Only the kernel's own sysfs is read by another process.
func TestCopiesAreReadHere(t *testing.T) {
	if node.LiveReader(hcatest.V100(t)) != nil || node.LiveReader("/nowhere") != nil {
		t.Error("a copy is read apart")
	}
}
