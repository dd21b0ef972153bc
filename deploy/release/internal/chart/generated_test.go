// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const root = "../../../.."

var update = flag.Bool("update", false, "write values.schema.json and the plain manifests")

// TestGenerated checks that the plain manifests are what the chart renders, that the schema has the configuration's,
// and that the README has all values.
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
	golden(t, readme, table.ReplaceAllLiteralString(read(t, readme), valuesTable(t)))
	for file, text := range texts {
		golden(t, filepath.Join("deploy", file), text)
	}
}

// TestPackage checks that a package has the release's image, where registries of charts look for it.
func TestPackage(t *testing.T) {
	file, err := Package(root, t.TempDir(), "1.2.3", "v1.2.3", time.Unix(1_700_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	images := c.Metadata.Annotations["artifacthub.io/images"]
	if !strings.Contains(images, "image: "+fmt.Sprint(c.Values["image"].(Values)["repository"])+":v1.2.3\n") {
		t.Errorf("the package names the images\n%s", images)
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
