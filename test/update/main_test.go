// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestTestedOf(t *testing.T) {
	const lines = `github.com/rdma-spec/rdma-spec/spec fmt os
github.com/rdma-spec/rdma-spec/spec.test fmt github.com/rdma-spec/rdma-spec/spec [github.com/rdma-spec/rdma-spec/spec.test] github.com/rdma-spec/rdma-spec/spec/hca
`
	want := []tested{{module: ".", dir: "spec", uses: []string{"spec", "spec/hca"}}}
	if diff := cmp.Diff(want, testedOf(".", lines), cmp.AllowUnexported(tested{})); diff != "" {
		t.Error(diff)
	}
}

func TestTested_affected(t *testing.T) {
	t.Chdir(repository.Path(t, "."))
	p := tested{dir: "spec", uses: []string{"spec", "spec/hca", "docs"}}
	for file, want := range map[string]bool{
		"spec/grant.go":                   true,
		"spec/testdata/new/deeper.json":   true,
		"spec/hca/hca.go":                 true,
		"docs/troubleshoot.md":            true,
		"docs/faults/acs.md":              true,
		"spec/hca/hca_test.go":            false,
		"spec/hca/testdata/x":             false,
		"spec/grant_test.go":              true,
		"plugin/plugin.go":                false,
		"plugin/testdata/x":               false,
		"deploy/examples/annotation.yaml": true, // in no package
		"README.md":                       false,
		".github/workflows/test.yaml":     false,
	} {
		if got := p.affected([]string{"Makefile", file}, false); got != want {
			t.Errorf("%s: %t, want %t", file, got, want)
		}
	}
	chart := tested{dir: "deploy/release/internal/chart", uses: []string{"deploy/release/internal/chart", "docs"}}
	for file, want := range map[string]bool{
		"deploy/config.schema.json":              true, // which it names
		"deploy/kustomize/base/component.absent": false,
		"docs/faults/acs.md":                     true, // of a package that it uses
	} {
		if got := chart.affected([]string{file}, true); got != want {
			t.Errorf("%s, generated: %t, want %t", file, got, want)
		}
	}
}

// The packages with golden files are found in both modules.
func TestWithGoldenFiles(t *testing.T) {
	t.Chdir(repository.Path(t, "."))
	packages, err := withGoldenFiles(".")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(packages, func(p tested) bool { return p.dir == "plugin/policy" })
	if at < 0 || !slices.Contains(packages[at].uses, "spec/hca") || slices.Contains(packages[at].uses, "cmd/nri-rdma") {
		t.Errorf("%+v", packages)
	}
	if got := below("deploy/release", "deploy/release/internal/chart"); got != "./internal/chart" {
		t.Error(got)
	}
}

func TestGoldenTests(t *testing.T) {
	got, err := goldenTests(repository.Path(t, "cmd/rdma-spec/internal/doctor/planted"))
	if err != nil || !slices.Contains(got, "TestFaultsPage") || slices.Contains(got, "TestFindingsLinkToPages") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWritten(t *testing.T) {
	before := map[string]string{"a.json": "1", "b.json": "1", "gone.md": ""}
	after := map[string]string{"a.json": "1", "b.json": "2", "c.md": "", "plugin/testdata/d": "3", "gone.md": ""}
	if diff := cmp.Diff([]string{"b.json", "c.md"}, written(before, after)); diff != "" {
		t.Error(diff)
	}
}
