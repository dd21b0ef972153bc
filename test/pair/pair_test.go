// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

// Package pair runs a test of test/e2e on two nodes at once.
package pair

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node"
)

var bin = flag.String("bin", "../../bin", "directory of nri-rdma and e2e.test")

// TestBetweenNodes boots two nodes, and runs the part pair of test/e2e on both. The second node runs the client.
func TestBetweenNodes(t *testing.T) {
	dir, err := filepath.Abs(*bin)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := node.Prepare(t.Context(), os.Stderr, node.Main)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // long enough for an emulated CPU on a busy host
	defer cancel()
	pair, err := node.BootPair(ctx, parts, node.Options{Memory: 2048, CPUs: 1, HCAs: 1})
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for i, server := range []string{"", node.PairAddress(1)} {
		both.Go(func() {
			var out bytes.Buffer
			status, err := pair[i].Run(ctx, node.Command{
				Args: []string{filepath.Join(dir, "e2e.test"), "-test.v", "-part", "pair", "-bin",
					dir, "-server", server},
				Out: &out, Err: &out,
			})
			if err != nil || status != 0 {
				t.Errorf("node %d: exit status %d, %v\n%s", i+1, status, err, out.String())
			} else {
				t.Logf("node %d:\n%s", i+1, out.String())
			}
		})
	}
	both.Wait()
	for _, n := range pair {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}
