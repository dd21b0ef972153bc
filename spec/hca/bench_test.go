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

// BenchmarkVerbs is what every character device of a container costs.
func BenchmarkVerbs(b *testing.B) {
	numbers, err := OpenNumbers(eight(b))
	if err != nil {
		b.Fatal(err)
	}
	defer numbers.Close() //nolint:errcheck // nothing is written
	for b.Loop() {
		if _, verbs, err := numbers.Verbs(Number{231, 195}); err != nil || !verbs {
			b.Fatal(verbs, err)
		}
	}
}

// BenchmarkScan is what an inventory costs, every 10 s.
func BenchmarkScan(b *testing.B) {
	root := eight(b)
	for b.Loop() {
		if node, err := Scan(root); err != nil || len(node.HCAs) != 8 {
			b.Fatal(node, err)
		}
	}
}
