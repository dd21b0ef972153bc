// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// withoutPlaces leaves out what JSON and copies without links do.
var withoutPlaces = cmp.Options{cmpopts.IgnoreFields(HCA{}, "Place"), cmpopts.IgnoreFields(Device{}, "Place")}

// TestGolden scans each named node and compares the whole inventory.
func TestGolden(t *testing.T) {
	for name, build := range hcatest.All {
		t.Run(name, func(t *testing.T) {
			node, err := ScanDetails(build(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(node, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".json")
			golden.Compare(t, file, string(got))

			var back Inventory
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(node, &back, withoutPlaces); diff != "" {
				t.Errorf("JSON does not give the same node back (-scanned +read):\n%s", diff)
			}
		})
	}
}
