// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const timeout = 2 * time.Second

func take(t *testing.T, root string, patterns ...string) (copied map[string]archive.Entry, missing []string) {
	t.Helper()
	copied, missing, err := Take(t.Context(), tree(t, root), timeout, patterns)
	if err != nil {
		t.Fatal(err)
	}
	return copied, missing
}

func tree(t *testing.T, root string) files.Tree {
	t.Helper()
	tree, err := files.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

// lines returns a copy's entries in one line each.
func lines(copied map[string]archive.Entry) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(copied)) {
		switch e := copied[name]; {
		case e.Dir:
			all = append(all, e.Name+"/")
		case e.Link != "":
			all = append(all, e.Name+" -> "+e.Link)
		default:
			all = append(all, fmt.Sprintf("%s %q", e.Name, e.Content))
		}
	}
	return all
}

// A pattern that several checks read is followed only once.
func TestPatterns(t *testing.T) {
	const gids = "sys/class/infiniband/*/ports/*/gids/*"
	o := collectOptions{checks: []doctor.Check{{Reads: []string{gids, "first"}}, {Reads: []string{gids, "second"}}}}
	got := map[string]int{}
	for _, pattern := range o.patterns() {
		got[pattern]++
	}
	for pattern, count := range got {
		if count != 1 {
			t.Errorf("%s is listed %d times", pattern, count)
		}
	}
	if got[gids] == 0 || got["first"] == 0 || got["second"] == 0 {
		t.Errorf("a check's pattern is missing: %v", got)
	}
}

func TestTake(t *testing.T) {
	root := hcatest.Files{
		"sys/devices/pci/hca/state":   "4: ACTIVE\n",
		"sys/devices/pci/hca/device":  hcatest.Link("../.."),
		"sys/devices/numa_node":       "1\n",
		"sys/class/infiniband/mlx5_0": hcatest.Link("../../devices/pci/hca"),
		"sys/class/infiniband/gone":   hcatest.Link("../../devices/nothing"),
		"sys/class/infiniband/loop":   hcatest.Link("loop"),
		"run/real":                    "text\n",
		"var/run":                     hcatest.Link("/run"),
		"etc/out":                     hcatest.Link("../../../../etc/passwd"),
		"etc/passwd":                  "inside\n",
		"dev/infiniband/fifo":         hcatest.FIFO,
		"proc/7/environ":              "SECRET=1\x00",
		"proc/7/root":                 hcatest.Link("/"),
		"unasked":                     "",
	}.Root(t)
	c, missing := take(t, root, "sys/class/infiniband/*/state", "sys/class/infiniband/mlx5_0/device/numa_node", "var/run/real",
		"etc/*", "dev/infiniband/*",
		"proc/*/*", "proc/*/root/run/real", "etc/passwd/x", "nothing/*",
		"sys/class/infiniband/mlx5_0/device/../devices/numa_node")
	want := []string{
		"dev/", "dev/infiniband/", `dev/infiniband/fifo ""`,
		"device-table.txt " + fmt.Sprintf("%q",
			fmt.Sprintf("# path type mode uid gid major minor\n/dev/infiniband/fifo p 0644 %d %d 0 0\n",
				os.Getuid(), os.Getgid())),
		"etc/", "etc/out -> passwd", `etc/passwd "inside\n"`,
		"proc/", "proc/7/", "run/", `run/real "text\n"`,
		"sys/", "sys/class/", "sys/class/infiniband/",
		"sys/class/infiniband/gone -> ../../devices/nothing", "sys/class/infiniband/loop -> loop",
		"sys/class/infiniband/mlx5_0 -> ../../devices/pci/hca",
		"sys/devices/", `sys/devices/numa_node "1\n"`, "sys/devices/pci/hca/", "sys/devices/pci/hca/device -> ../..",
		`sys/devices/pci/hca/state "4: ACTIVE\n"`,
		"var/", "var/run -> ../run",
	}
	if diff := cmp.Diff(want, lines(c)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"proc/7/root: too many levels of symbolic links", // it leads into a container
		"sys/class/infiniband/loop: too many levels of symbolic links",
	}, missing); diff != "" {
		t.Errorf("missing, -want +got:\n%s", diff)
	}
}

func TestInside(t *testing.T) {
	for link, tc := range map[string]struct{ target, want string }{
		"etc/a":   {"../../x", "../x"},
		"etc/b":   {"/x/y", "../x/y"},
		"etc/c":   {"/", ".."},
		"a":       {"/", "."},
		"sys/a/b": {"../../x", "../../x"},
		"sys/a/d": {"b/../c", "b/../c"},
		"sys/a/c": {"../../../x", "../../x"},
	} {
		if got := targetInRoot(link, tc.target); got != tc.want {
			t.Errorf("%s -> %s becomes %s, want %s", link, tc.target, got, tc.want)
		}
	}
}

// A file that never answers costs its own time, and all that block cost it together.
func TestCollect_blockedFiles(t *testing.T) {
	node := hcatest.V100Node().Files()
	for i := range atOnce - 1 {
		node[fmt.Sprintf("sys/blocked/%02d", i)] = "x"
	}
	root := node.Root(t)
	for i := range atOnce - 1 {
		hcatest.Block(t, root, fmt.Sprintf("sys/blocked/%02d", i))
	}
	began := time.Now()
	c, missing := take(t, root, "sys/blocked/*", "sys/class/infiniband/*/ports/*/*")
	if took := time.Since(began); took > 2*timeout {
		t.Errorf("it took %s", took)
	}
	if len(missing) != atOnce-1 || missing[0] != "sys/blocked/00: the file could not be read within 2s" {
		t.Errorf("missing: %q", missing)
	}
	if got := strings.Join(lines(c), "\n"); strings.Contains(got, "blocked/0") || !strings.Contains(got,
		`ports/1/state "4: ACTIVE\n"`) {
		t.Errorf("entries:\n%s", got)
	}
}

// Programs are empty in a copy, also those that a link leads to.
func TestPrograms(t *testing.T) {
	root := hcatest.Files{
		"opt/nri/plugins/10-a": "\x7fELF", "opt/nri/plugins/20-b": hcatest.Link("/srv/b"), "srv/b": "\x7fELF",
		"var/lib/cni/bin/rdma": "\x7fELF", "etc/c": "text",
	}.Root(t)
	if err := os.Truncate(filepath.Join(root, "opt/nri/plugins/10-a"), archive.MaxFile+1); err != nil { // too large for a copy
		t.Fatal(err)
	}
	want := []string{
		`etc/c "text"`, `opt/nri/plugins/10-a ""`, "opt/nri/plugins/20-b -> ../../../srv/b", `srv/b ""`,
		`var/lib/cni/bin/rdma ""`,
	}
	c, _ := take(t, root, "opt/nri/plugins/*", "var/lib/cni/bin/rdma", "etc/*")
	got := slices.DeleteFunc(lines(c),
		func(line string) bool { return strings.HasSuffix(line, "/") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTakeIsBounded(t *testing.T) {
	root := scratch.Dir(t)
	for name, size := range map[string]int64{"fits": archive.MaxFile, "too-large": archive.MaxFile + 1} {
		file := filepath.Join(root, name)
		scratch.File(t, file, "", 0o600)
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
	}
	scratch.File(t, filepath.Join(root, "unreadable"), "", 0)
	scratch.File(t, filepath.Join(root, "sys/rescan"), "", 0o200) // it is only written, so it is not missing
	// the race detector reads 32 MiB slowly
	c, missing, err := Take(t.Context(), tree(t, root), await.Timeout, []string{"*", "sys/*"})
	if err != nil {
		t.Fatal(err)
	}
	if e, found := c["sys/rescan"]; found {
		t.Errorf("%+v", e)
	}
	want := []string{"too-large: the file is longer than 33554432 bytes"}
	if unix.Geteuid() != 0 {
		want = append(want, "unreadable: permission denied")
	}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Errorf("missing, -want +got:\n%s", diff)
	}
	if _, _, err := Take(t.Context(), tree(t, root), timeout, []string{"["}); err == nil {
		t.Error("a pattern that is not one has no error")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Take(ended, tree(t, root), timeout, []string{"*"}); err == nil {
		t.Error("it went on without its caller")
	}
}
