// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
)

// TestMain makes the test's program a containerd, but only if it is started with that name, as K3s' program k3s does.
func TestMain(m *testing.M) {
	if os.Args[0] == "containerd" {
		fmt.Println("containerd github.com/k3s-io/containerd v2.1.4-k3s1")
		return
	}
	os.Exit(m.Run())
}

// K3s' containerd is a link to the program k3s, so /proc/PID/exe leads to k3s.
func TestProgramOfManyNames(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if version, err := containerd.Binary(program).Version(t.Context()); version != "2.1.4" || err != nil {
		t.Errorf("version %q, %v", version, err)
	}
}
