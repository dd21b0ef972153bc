// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// What is unpacked stays in its directory, leads nowhere else, and can be packed and unpacked again.
func FuzzUnpack(f *testing.F) {
	var text bytes.Buffer
	if err := Write(&text, node); err != nil {
		f.Fatal(err)
	}
	plain, err := gzip.NewReader(&text)
	if err != nil {
		f.Fatal(err)
	}
	good, err := io.ReadAll(plain)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(packed(f, a{name: "etc/", kind: tar.TypeDir}, a{name: "etc/x", kind: tar.TypeSymlink, link: "../../x"},
		a{name: "etc/x/y", kind: tar.TypeReg, content: "z"}))
	f.Add(packed(f, a{name: "../x", kind: tar.TypeReg, content: "y"},
		a{name: "x", kind: tar.TypeLink, link: "/etc/passwd"}))
	f.Fuzz(func(t *testing.T, tarred []byte) {
		above := scratch.Dir(t, "node")
		dir := filepath.Join(above, "node")
		err := Unpack(compressed(t, tarred), dir)
		if found, err := os.ReadDir(above); err != nil || len(found) != 1 {
			t.Fatalf("beside the directory: %v, %v", found, err)
		}
		if err != nil {
			return
		}
		entries := tree(t, dir)
		for _, e := range entries {
			if e.Link == "" {
				continue
			}
			leads, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name))
			if err == nil && leads != dir && !strings.HasPrefix(leads, dir+"/") || err != nil &&
				!errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "not a directory") {
				t.Fatalf("%s -> %s leads to %s, %v", e.Name, e.Link, leads, err)
			}
		}
		var again bytes.Buffer
		if err := Write(&again, entries); err != nil {
			t.Fatal(err)
		}
		other := scratch.Dir(t)
		if err := Unpack(&again, other); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(entries, tree(t, other)); diff != "" {
			t.Fatalf("-first +second:\n%s", diff)
		}
	})
}
