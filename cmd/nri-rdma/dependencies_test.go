// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDaemonStaysSmall checks that what only the tool or the tests need is not linked into the daemon, whose memory
// counts on every node.
func TestDaemonStaysSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/nri-rdma")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("%d packages found, want more", len(packages))
	}
	for _, module := range []string{
		"github.com/containerd/containerd/v2", "github.com/spf13/cobra", "github.com/google/renameio",
		"go.yaml.in/yaml/v3", "k8s.io/api", "k8s.io/cri-api", "k8s.io/client-go",
	} {
		for _, pkg := range packages {
			if pkg == module || strings.HasPrefix(pkg, module+"/") {
				t.Errorf("the daemon links %s", pkg)
			}
		}
	}
}
