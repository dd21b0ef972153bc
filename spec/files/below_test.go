// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A missing file differs from an empty one.
func TestSame(t *testing.T) {
	for _, pair := range [][2][]byte{{nil, nil}, {{}, {}}, {[]byte("a"), []byte("a")}} {
		if !files.Same(pair[0], pair[1]) {
			t.Errorf("%q and %q are not the same", pair[0], pair[1])
		}
	}
	for _, pair := range [][2][]byte{{nil, {}}, {{}, nil}, {[]byte("a"), nil}, {[]byte("a"), []byte("b")}} {
		if files.Same(pair[0], pair[1]) {
			t.Errorf("%q and %q are the same", pair[0], pair[1])
		}
	}
}

func TestBelow(t *testing.T) {
	root := scratch.Dir(t)
	must.Succeed(t, os.MkdirAll(filepath.Join(root, "data/etc"), 0o755), os.Symlink("/data/etc", filepath.Join(root, "etc")),
		os.Symlink("../..//data", filepath.Join(root, "up")), os.Symlink("/var/file", filepath.Join(root, "data/etc/link")),
		os.Symlink("/b", filepath.Join(root, "a")), os.Symlink("/a", filepath.Join(root, "b")))
	for name, want := range map[string]string{
		"etc/config.toml": "data/etc/config.toml", "/etc/new/directory/file": "data/etc/new/directory/file", "up/etc": "data/etc",
		"etc/link": "var/file", "../../data/../data/etc": "data/etc", "plain": "plain", "/": "", "a/file": "b/file\x00", "": "",
	} {
		if want = filepath.Join(root, want); name == "a/file" {
			if _, err := os.Stat(files.Below(root, name)); err == nil || errors.Is(err, os.ErrNotExist) {
				t.Errorf("a loop: %v", err)
			}
			continue
		}
		if got := files.Below(root, name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	for _, live := range []string{"", "/"} {
		if got := files.Below(live, "proc/self/exe"); got != "/proc/self/exe" {
			t.Errorf("below %q: %s", live, got)
		}
	}
}
