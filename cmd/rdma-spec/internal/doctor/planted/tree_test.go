// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// linked is a node with links of all sorts.
var linked = hcatest.Files{
	"etc/containerd":          hcatest.Link("/var/lib/containerd/etc"),
	"var/lib/containerd":      hcatest.Link("../../mnt"),
	"mnt/etc/config.toml":     "here",
	"mnt/etc/absolute":        hcatest.Link("/etc/containerd/config.toml"),
	"mnt/etc/climbs":          hcatest.Link("../../../../../../etc/containerd/config.toml"),
	"mnt/etc/dangles":         hcatest.Link("/nowhere"),
	"mnt/etc/turns":           hcatest.Link("/mnt/etc/turns"),
	"mnt/etc/fifo":            hcatest.FIFO,
	"proc/7/root":             hcatest.Link("/"),
	"sys/class/a/b/attribute": "1",
	"sys/class/c":             "2",
}

// Links lead where they lead on the node, and nowhere else.
func TestView_links(t *testing.T) {
	v := &doctor.View{Snapshot: open(t, linked), Declared: &doctor.Check{ID: "reads", Reads: []string{"etc/containerd/*",
		"proc/*/root/*/*/*", "proc/*/root"}}}
	for name, want := range map[string]string{
		"etc/containerd/config.toml": "here", "etc/containerd/absolute": "here", "etc/containerd/climbs": "here",
	} {
		if got, err := v.Read(name); got != want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if there, err := v.Exists(name); !there || err != nil {
			t.Errorf("%s: %v, %v", name, there, err)
		}
	}
	for name, want := range map[string]error{
		"etc/containerd/dangles": fs.ErrNotExist, "etc/containerd/turns": syscall.ELOOP,
		"etc/containerd/none":             fs.ErrNotExist,
		"proc/7/root/mnt/etc/config.toml": syscall.ELOOP, "etc/hostname": doctor.ErrUndeclared,
	} {
		if _, err := v.Read(name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := v.Read("etc/containerd/fifo"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
	if there, err := v.Exists("etc/containerd/dangles"); there || err != nil {
		t.Errorf("%v, %v", there, err)
	}
	if to, err := v.Readlink("etc/containerd/absolute"); to != "/etc/containerd/config.toml" || err != nil {
		t.Errorf("%q, %v", to, err)
	}
	names, err := v.Glob("etc/containerd/c*")
	if diff := cmp.Diff([]string{"etc/containerd/climbs", "etc/containerd/config.toml"}, names); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
}

// A check sees no more than collect would copy.
func TestView_undeclaredFiles(t *testing.T) {
	v := &doctor.View{Snapshot: open(t, linked), Declared: &doctor.Check{ID: "reads", Reads: []string{"sys/class/*/b/attribute"}}}
	if got, err := v.Glob("sys/class/*/b/attribute"); len(got) != 1 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := v.Glob("sys/class/a*/b/attribute"); len(got) != 1 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, pattern := range []string{"sys/class/*", "sys/class/*/*/attribute", "etc/*"} {
		if got, err := v.Glob(pattern); !errors.Is(err, doctor.ErrUndeclared) {
			t.Errorf("%s: %q, %v", pattern, got, err)
		}
	}
	if _, err := v.Exists("sys/class/c"); !errors.Is(err, doctor.ErrUndeclared) {
		t.Error(err)
	}
	if _, err := v.Readlink("sys/class/c"); !errors.Is(err, doctor.ErrUndeclared) {
		t.Error(err)
	}
}

// The live node's links lead where the kernel has them lead.
func TestView_liveNode(t *testing.T) {
	v := &doctor.View{Snapshot: openBelow(t, "/"), Declared: &doctor.Check{ID: "reads",
		Reads: []string{"proc/*/root/proc/self/comm", "proc/self/*"}}}
	want := scratch.Read(t, "/proc/self/comm")
	for _, name := range []string{"proc/self/comm", "proc/self/root/proc/self/comm"} {
		if got, err := v.Read(name); got != want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := v.Glob("proc/self/com?"); len(got) != 1 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if to, err := v.Readlink("proc/self/exe"); err != nil || to == "" {
		t.Errorf("%q, %v", to, err)
	}
}

// A directory that cannot be listed is not an empty one.
func TestView_globUnreadableDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root lists everything")
	}
	root := linked.Root(t)
	if err := os.Chmod(root+"/sys/class", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(root+"/sys/class", 0o755) })
	v := &doctor.View{Snapshot: openBelow(t, root), Declared: &doctor.Check{ID: "reads", Reads: []string{"sys/class/*/b/attribute"}}}
	if names, err := v.Glob("sys/class/*/b/attribute"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%q, %v", names, err)
	}
}
