// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// dropIns makes crio/crio.conf.d, and gives the path of both folders.
func dropIns(t *testing.T) (above, folder string) {
	t.Helper()
	above = filepath.Join(reachable(t), "crio")
	folder = filepath.Join(above, "crio.conf.d")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return above, folder
}

// However a drop-in is named, no file but itself comes into its folder: the daemon would read it.
func TestReplaceInADropInFolder(t *testing.T) {
	for name, write := range map[string]func(t *testing.T, folder string) (path string){
		"by its path": func(_ *testing.T, folder string) string { return filepath.Join(folder, "90.conf") },
		"by its name": func(t *testing.T, folder string) string {
			t.Chdir(folder)
			return "90.conf"
		},
		"by a link to its folder": func(t *testing.T, folder string) string {
			link := filepath.Join(t.TempDir(), "folder")
			if err := os.Symlink(folder, link); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(link, "90.conf")
		},
		"by a link's parent": func(t *testing.T, folder string) string {
			if err := os.Mkdir(filepath.Join(folder, "below"), 0o755); err != nil {
				t.Fatal(err)
			}
			link := filepath.Join(t.TempDir(), "below")
			if err := os.Symlink(filepath.Join(folder, "below"), link); err != nil {
				t.Fatal(err)
			}
			t.Chdir(filepath.Dir(link))
			return "below/../90.conf"
		},
	} {
		t.Run(name, func(t *testing.T) {
			above, folder := dropIns(t)
			file := write(t, folder)
			watcher, err := fsnotify.NewBufferedWatcher(100)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = watcher.Close() })
			if err := watcher.Add(folder); err != nil {
				t.Fatal(err)
			}
			for i, content := range []string{"original", "second", "third"} {
				backup, err := Replace(file, []byte(content))
				if err != nil {
					t.Fatal(err)
				}
				want := []string{"", above + "/crio.conf.d-90.conf.rdma-spec.bak", above + "/crio.conf.d-90.conf.rdma-spec.bak.2"}[i]
				if backup != want {
					t.Errorf("the backup is %q, want %q", backup, want)
				}
			}
			check(t, folder, map[string]string{"90.conf": "third"})
			check(t, above, map[string]string{"crio.conf.d-90.conf.rdma-spec.bak": "original", "crio.conf.d-90.conf.rdma-spec.bak.2": "second"})

			// The kernel has queued what happened in the folder, and then this.
			last := filepath.Join(folder, "last")
			if err := os.Mkdir(last, 0o755); err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for event := range watcher.Events {
				if event.Name == last {
					break
				}
				seen[filepath.Base(event.Name)] = true
			}
			if diff := cmp.Diff(map[string]bool{"90.conf": true}, seen); diff != "" {
				t.Errorf("names seen in the folder (-want +got):\n%s", diff)
			}
		})
	}
}

// Drop-ins of the same name in two folders have backups of their own.
func TestOutsideDropIns(t *testing.T) {
	for target, want := range map[string][2]string{
		"/etc/containerd/rdma-spec.json":                   {"/etc/containerd", "rdma-spec.json"},
		"/etc/crio/crio.conf.d/90-rdma-spec.conf":          {"/etc/crio", "crio.conf.d-90-rdma-spec.conf"},
		"/etc/systemd/system/containerd.service.d/90.conf": {"/etc/systemd/system", "containerd.service.d-90.conf"},
		"/etc/crio/crio.conf.d/more.d/90.conf":             {"/etc/crio", "crio.conf.d-more.d-90.conf"},
		"/etc/containerd/conf.d.old/90.toml":               {"/etc/containerd/conf.d.old", "90.toml"},
		"/file.d":                                          {"/", "file.d"},
		"/x.d/file":                                        {"/", "x.d-file"},
	} {
		if folder, name := outsideDropIns(target); folder != want[0] || name != want[1] {
			t.Errorf("outsideDropIns(%q) = %q, %q; want %q", target, folder, name, want)
		}
	}
}
