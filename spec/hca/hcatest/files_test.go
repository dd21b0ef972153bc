// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestWrite(t *testing.T) {
	root := Files{"a/b/c": "text\n", "a/empty/": "", "a/link": Link("b/c"), "a/fifo": FIFO}.Root(t)
	for path, want := range map[string]fs.FileMode{"a/b/c": 0, "a/empty": fs.ModeDir, "a/link": fs.ModeSymlink,
		"a/fifo": fs.ModeNamedPipe} {
		if fi, err := os.Lstat(filepath.Join(root, path)); err != nil || fi.Mode().Type() != want {
			t.Errorf("%s: %v, error %v, want type %v", path, fi, err, want)
		}
	}
}

// TestWriteStaysInside: if links of a tree lead out of it, the tree is written, but nothing is written through these
// links.
func TestWriteStaysInside(t *testing.T) {
	outside := scratch.Dir(t)
	for name, f := range map[string]Files{
		"absolute": {"a": Link(outside), "a/b": "x"},
		"relative": {"a": Link("../" + filepath.Base(outside)), "a/b/": ""},
		"FIFO":     {"a": Link(outside), "a/b": FIFO},
		"upwards":  {"../" + filepath.Base(outside) + "/b": "x"},
	} {
		if err := f.Write(scratch.Dir(t)); err == nil || !strings.HasPrefix(err.Error(), "cannot create ") {
			t.Errorf("%s: error %v, want one that names the path", name, err)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("written outside: %v, error %v", entries, err)
	}
	if err := (Files{}).Write(filepath.Join(outside, "none")); err == nil {
		t.Error("written to a directory that is not there")
	}
}

// TestLinksLead: in each named node except Broken, every link has a target.
func TestLinksLead(t *testing.T) {
	for name, build := range All {
		if name == "Broken" {
			continue
		}
		root := build(t)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type() == fs.ModeSymlink {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
