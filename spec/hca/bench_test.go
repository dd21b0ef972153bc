// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// eight is a node with eight HCAs.
func eight(b *testing.B) string {
	n := hcatest.EightHCANode()
	n.HCAs = n.HCAs[:8]
	return n.Files().Root(b)
}

// BenchmarkVerbsNumbers is what every container that holds a character device
// costs. On the live node it is cheaper than here, in a copy.
func BenchmarkVerbsNumbers(b *testing.B) {
	root := eight(b)
	for b.Loop() {
		if found, err := VerbsNumbers(root); err != nil || len(found) != 8 {
			b.Fatal(found, err)
		}
	}
}

// BenchmarkScan is what a container that asks for devices costs.
func BenchmarkScan(b *testing.B) {
	root := eight(b)
	for b.Loop() {
		if node, err := Scan(root); err != nil || len(node.HCAs) != 8 {
			b.Fatal(node, err)
		}
	}
}
