// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package deploy_test

import (
	"os"
	"path/filepath"
	"testing"
)

// besideSystemd starts a systemd in the node, and in its namespaces the same test again, which then carries out what it does there. What is
// installed before is there when systemd starts.
func besideSystemd(t *testing.T, install, do func(t *testing.T)) {
	t.Helper()
	switch {
	case os.Getenv("RDMA_NODE") == "":
		t.Fatal("this test runs inside the RDMA node: call `make e2e`")
	case os.Getenv(inside) == "":
		if install != nil {
			install(t)
		}
		beside := startSystemd(t)
		self, err := filepath.Abs(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		cmd := beside.Command(self, "-test.run=^"+t.Name()+"$", "-test.v", "-bin", *bin)
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("beside systemd: %v\n%s", err, out)
		} else {
			t.Logf("beside systemd:\n%s", out)
		}
	default:
		do(t)
	}
}
