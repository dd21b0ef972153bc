// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// An archive can be read again and again: it is the same each time, and nothing of it stays on the disk.
func TestRootFlag_archive(t *testing.T) {
	temporary := scratch.Dir(t)
	t.Setenv("TMPDIR", temporary)
	root := hcatest.V100(t)
	file := program.Collect(t, root)
	again := program.Collect(t, file)
	if diff := cmp.Diff(scratch.Read(t, file), scratch.Read(t, again)); diff != "" {
		t.Error("the copy of a copy differs from it")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
	program.Compare(t, "archive", map[string]string{"FILE": file}, `
		generate --devices mlx5_1 --root FILE
		explain -f ../../deploy/examples/annotation-one-hca.yaml --config testdata/explain/defaults.yaml --root FILE
		repair --root FILE
		status --config x --root FILE
		devices --root archive_test.go
		configure nri --dry-run --root FILE`, nodetest.SpecGist)
	got := program.Words("explain -f ../../deploy/examples/annotation-one-hca.yaml --root", file)
	if got.Status != 3 || !strings.Contains(got.Stderr, "when the support bundle was written: no policy is in force") {
		t.Errorf("explain: %+v", got)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// What is no file is not written, and not changed either: a file that is there does not lend its mode to an archive.
	if err := os.Chmod(temporary, 0o705); err != nil {
		t.Fatal(err)
	}
	if got := program.Call("", "collect", "--root", root, "--to", temporary); got.Status != 3 || !strings.Contains(got.Stderr, temporary) {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(temporary); err != nil || info.Mode().Perm() != 0o705 {
		t.Errorf("%v, %v, want mode 0705", info.Mode(), err)
	}
	if err := os.Chmod(again, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := program.Call("", "collect", "--root", root, "--to", again); got.Status != 0 {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(again); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
}

// A directory that has nothing of a node is not a healthy node, nor one without HCAs.
func TestRootFlag_notANode(t *testing.T) {
	empty := scratch.Dir(t)
	for _, command := range []string{
		"doctor", "status", "repair", "devices", "cdi list", "generate", "explain ../../deploy/examples/annotation.yaml",
		"collect --to " + scratch.Dir(t) + "/node.tar.gz", "wait --timeout 1ms",
	} {
		got := program.Words(command+" --root", empty)
		if got.Status != 3 || !strings.Contains(got.Stderr, empty) || got.Stdout != "" {
			t.Errorf("%s: %+v, want exit status 3, and the directory", command, got)
		}
	}
}
