// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A file that has another name is replaced, and that is said: the other name keeps the former content.
func TestConfigureAFileWithTwoNames(t *testing.T) {
	root, _ := configureNode(t)
	config := filepath.Join(root, "etc/containerd/config.toml")
	other := filepath.Join(root, "etc/containerd/backup")
	if err := os.Link(config, other); err != nil {
		t.Fatal(err)
	}
	before := scratch.Read(t, other)
	for _, args := range []string{"nri --dry-run", "nri"} {
		if got := done(t, root, args); !strings.Contains(got.Stderr, config+
			" is one of 2 names of a file (hard links): the others keep the former content\n") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if after := scratch.Read(t, other); after != before || scratch.Read(t, config) == before {
		t.Errorf("the other name has %s", after)
	}
}

// readOnlyRoot is the node of a test in a mount namespace of its own, where the node's /etc cannot be written.
const readOnlyRoot = "CONFIGURE_READ_ONLY"

// A node whose /etc cannot be written says so, and what is meant for it.
func TestConfigureAnImmutableNode(t *testing.T) {
	if root := os.Getenv(readOnlyRoot); root != "" {
		got := configure(root, "nri")
		if got.Status != 3 || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, "read-only file system: the node "+
			"is immutable: give the output of rdma-spec generate --for talos to the configuration of talos") {
			t.Errorf("%+v", got)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("a mount needs root")
	}
	root, _ := configureNode(t)
	scratch.File(t, filepath.Join(root, "usr/lib/os-release"), "ID=talos\n", 0o600)
	before := nodeFiles(t, root)
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; exec "$0" `+
		`-test.run "^TestConfigureAnImmutableNode$"`, os.Args[0], filepath.Join(root, "etc"))
	cmd.Env = append(os.Environ(), readOnlyRoot+"="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	unchanged(t, root, before, "afterwards")
}
