// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden scans each named node and compares the whole inventory.
func TestGolden(t *testing.T) {
	for name, build := range hcatest.All {
		t.Run(name, func(t *testing.T) {
			node, err := Scan(build(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(node, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("inventory differs from %s (-want +got):\n%s", file, diff)
			}

			var back Node
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(node, &back); diff != "" {
				t.Errorf("JSON does not give the same node back (-scanned +read):\n%s", diff)
			}
		})
	}
}
