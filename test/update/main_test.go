// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestTestedOf(t *testing.T) {
	const lines = `fmt errors
github.com/rdma-spec/rdma-spec/spec fmt os
github.com/rdma-spec/rdma-spec/spec [github.com/rdma-spec/rdma-spec/spec.test] fmt os github.com/rdma-spec/rdma-spec/test/testing/golden
github.com/rdma-spec/rdma-spec/spec.test fmt github.com/rdma-spec/rdma-spec/spec [github.com/rdma-spec/rdma-spec/spec.test] github.com/rdma-spec/rdma-spec/test/testing/golden
github.com/rdma-spec/rdma-spec/clitest fmt github.com/rdma-spec/rdma-spec/test/testing/golden
github.com/rdma-spec/rdma-spec/config.test github.com/rdma-spec/rdma-spec/clitest github.com/rdma-spec/rdma-spec/spec github.com/rdma-spec/rdma-spec/test/testing/golden
github.com/rdma-spec/rdma-spec/plugin.test fmt github.com/rdma-spec/rdma-spec/plugin
`
	want := []tested{
		{module: ".", dir: "spec", uses: []string{"spec", "test/testing/golden"}},
		{module: ".", dir: "config", uses: []string{"clitest", "spec", "test/testing/golden"}, helpers: []string{"clitest"}},
	}
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
		"deploy/examples/annotation.yaml": true, // belongs to no package
		"README.md":                       false,
		".github/workflows/test.yaml":     false,
	} {
		if got := p.affected([]string{"Makefile", file}, false); got != want {
			t.Errorf("%s: %t, want %t", file, got, want)
		}
	}
	chart := tested{dir: "deploy/release/internal/chart", uses: []string{"deploy/release/internal/chart", "docs"}}
	for file, want := range map[string]bool{
		"deploy/config.schema.json":              true, // the package names this file
		"deploy/kustomize/base/component.absent": false,
		"docs/faults/acs.md":                     true, // of a package that it uses
	} {
		if got := chart.affected([]string{file}, true); got != want {
			t.Errorf("%s, generated: %t, want %t", file, got, want)
		}
	}
}

// TestWithGoldenFiles checks that update finds the packages with golden files, and the tests that use them.
func TestWithGoldenFiles(t *testing.T) {
	t.Chdir(repository.Path(t, "."))
	packages, err := withGoldenFiles(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ dir, uses, usesNot, test, testNot string }{
		{"plugin/policy", "spec/hca", "cmd/nri-rdma", "TestConfigIsRefused", "TestLoad"},
		{"cmd/rdma-spec/internal/doctor/planted", "docs", "cmd/nri-rdma", "TestFaultsPage", "TestPages_existForChecks"},
		// Through clitest.
		{"cmd/internal/config", "cmd/internal/clitest", "cmd/nri-rdma", "TestConfig", "TestConfigShowTakesWhatItShows"},
		{"cmd/rdma-spec", "cmd/internal/clitest", "cmd/nri-rdma", "TestPolicyInForce", "TestVersion"},
	} {
		at := slices.IndexFunc(packages, func(p tested) bool { return p.dir == want.dir })
		if at < 0 {
			t.Errorf("%s is not found", want.dir)
			continue
		}
		p := packages[at]
		if !slices.Contains(p.uses, want.uses) || slices.Contains(p.uses, want.usesNot) {
			t.Errorf("%+v, want %s, and not %s", p, want.uses, want.usesNot)
		}
		tests, err := p.goldenTests()
		if err != nil || !slices.Contains(tests, want.test) || slices.Contains(tests, want.testNot) {
			t.Errorf("%s: %q, %v, want %s, and not %s", want.dir, tests, err, want.test, want.testNot)
		}
	}
	if got := below("deploy/release", "deploy/release/internal/chart"); got != "./internal/chart" {
		t.Error(got)
	}
}

// TestGoldenTests checks that update finds a test that uses a golden file through a variable.
func TestGoldenTests(t *testing.T) {
	dir := scratch.Dir(t)
	scratch.File(t, filepath.Join(dir, "a_test.go"), `package a
var compare = func(t *testing.T) { golden.Compare(t, "a", "b") }
func TestMain(*testing.M) { compare(nil) }
func TestOne(t *testing.T) { compare(t) }
func TestOther(t *testing.T) {}
`, 0o600)
	got, err := tested{dir: dir}.goldenTests()
	if diff := cmp.Diff([]string{"TestOne"}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}

func TestWritten(t *testing.T) {
	before := map[string]string{"a.json": "1", "b.json": "1", "gone.md": ""}
	after := map[string]string{"a.json": "1", "b.json": "2", "c.md": "", "plugin/testdata/d": "3", "gone.md": ""}
	if diff := cmp.Diff([]string{"b.json", "c.md"}, written(before, after)); diff != "" {
		t.Error(diff)
	}
}
