// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../../../.."

var update = flag.Bool("update", false, "write values.schema.json and the plain manifests")

// TestGenerated checks that the plain manifests are what the chart renders, and that the schema has the
// configuration's.
func TestGenerated(t *testing.T) {
	schema, err := Schema(root)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join(Folder, "values.schema.json"), string(schema))
	c, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := plain(c)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range texts {
		golden(t, filepath.Join("deploy", file), text)
	}
}

func golden(t *testing.T, file, want string) {
	t.Helper()
	path := filepath.Join(root, file)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not what the chart gives: run go test ./internal/chart -update in deploy/release: -chart +file:\n%s",
			file, diff)
	}
}
