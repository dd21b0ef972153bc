// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Whoever has a network namespace of its own, and is no container that the runtimes list, may hold what is missing.
func TestStrangers(t *testing.T) {
	const header, lo, eth = "Inter-|   Receive\n face |bytes\n", "    lo:       0\n", "  eth0: 1234\n"
	files, namespaces := map[string]string{}, map[int]int{1: 1, 20: 2, 21: 2, 30: 1, 40: 3, 41: 3, 50: 4}
	for pid, dev := range map[int]string{1: lo + eth, 20: lo + eth, 21: lo + eth, 30: lo + eth, 40: eth + lo, 41: eth + lo, 50: lo} {
		files[fmt.Sprintf("proc/%d/net/dev", pid)] = header + dev
		files[fmt.Sprintf("proc/%d/ns/x", pid)] = ""
	}
	root := scratch.With(t, files, 0o600)
	for pid, namespace := range namespaces {
		at := filepath.Join(root, "proc", fmt.Sprint(pid), "ns/net")
		if err := os.Symlink(fmt.Sprintf("net:[%d]", namespace), at); err != nil {
			t.Fatal(err)
		}
	}
	listed := []Listed{{Container: cri.Container{PID: 20}}, {Container: cri.Container{PID: 99}}}
	if diff := cmp.Diff([]int{40}, strangers(root, listed)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
