// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const root = "../../../.."

// TestGenerated checks that the plain manifests are what the chart renders, that the schema has the configuration's,
// and that the README has all values.
func TestGenerated(t *testing.T) {
	schema, err := Schema(root)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join(root, Folder, "values.schema.json"), string(schema))
	c, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := plain(c)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join(root, readme), table.ReplaceAllLiteralString(read(t, readme), valuesTable(t)))
	for file, text := range texts {
		golden.Compare(t, filepath.Join(root, "deploy", file), text)
	}
}

// TestPackage checks that a package has the release's image, where registries of charts look for it.
func TestPackage(t *testing.T) {
	file, err := Package(root, scratch.Folder(t), "1.2.3", "v1.2.3", time.Unix(1_700_000_000, 0))
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
