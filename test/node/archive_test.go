// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A host that is not Debian 12 can also fetch Debian 12's packages, and keeps its own package lists.
func TestArchiveOnAnotherHost(t *testing.T) {
	const lists = "/var/lib/apt/lists"
	before := listing(t, lists)
	a := debian12("NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_ID=\"24.04\"\nID_LIKE=debian\n", scratch.Dir(t))
	name, err := a.dependency(t.Context(), "linux-image-amd64", "linux-image-")
	if err != nil || !strings.HasPrefix(name, "linux-image-6.1.") || !strings.HasSuffix(name, "-amd64") {
		t.Errorf("the kernel's package is %q, %v; want Debian 12's", name, err)
	}
	dir := scratch.Dir(t)
	if err := a.unpack(t.Context(), dir, "containerd"); err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(filepath.Join(dir, "usr/bin/containerd"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(version), " 1.6.") {
		t.Errorf("containerd --version: %v: %s", err, version)
	}
	if after := listing(t, lists); after != before {
		t.Errorf("the host's lists have changed from\n%s\nto\n%s", before, after)
	}
}

// listing returns the names and modification times of the files in a directory. It omits subdirectories, because apt
// writes in them.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(entry.Name() + " " + info.ModTime().String() + "\n")
	}
	return text.String()
}
