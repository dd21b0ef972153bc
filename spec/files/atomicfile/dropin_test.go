// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// madeDir creates a directory in which a daemon reads all files, and returns the paths of this directory and its
// parent.
func madeDir(t *testing.T, kind string) (above, made string) {
	t.Helper()
	made = filepath.Join(dirWith(t, nil), kind)
	if err := os.MkdirAll(made, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(made), made
}

// readWholeDirs are directories in which a daemon reads every file, whatever its name: CRI-O treats a backup as a
// drop-in, and containerd does not start if a plugin's name has no index.
var readWholeDirs = []string{"crio/crio.conf.d", "containerd/conf.d", "opt/nri/plugins"}

// Whichever function writes a file in such a directory, the directory never contains another file, so a kill cannot
// leave one there.
func TestReplace_dropInDirectory(t *testing.T) {
	for _, kind := range readWholeDirs {
		for how, path := range map[string]func(t *testing.T, dir string) string{
			"by its path": func(_ *testing.T, dir string) string { return filepath.Join(dir, "90.conf") },
			"by its name": func(t *testing.T, dir string) string {
				t.Chdir(dir)
				return "90.conf"
			},
			"by a link to its directory": func(t *testing.T, dir string) string {
				return filepath.Join(scratch.With(t, map[string]string{"directory": "-> " + dir}, 0), "directory/90.conf")
			},
			"by a link's parent": func(t *testing.T, dir string) string {
				if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
					t.Fatal(err)
				}
				t.Chdir(scratch.With(t, map[string]string{"below": "-> " + dir + "/below"}, 0))
				return "below/../90.conf"
			},
		} {
			t.Run(kind+" "+how, func(t *testing.T) {
				above, dir := madeDir(t, kind)
				file, names := path(t, dir), namesSeen(t, dir)
				beside := above + "/" + filepath.Base(dir) + "-90.conf.rdma-spec.bak"
				for i, content := range []string{"original", "second", "third"} {
					backup, err := Replace(file, []byte(content))
					if err != nil {
						t.Fatal(err)
					}
					if want := []string{"", beside, beside + ".2"}[i]; backup != want {
						t.Errorf("the backup is %q, want %q", backup, want)
					}
				}
				if err := Write(file, []byte("fourth"), 0o755); err != nil {
					t.Fatal(err)
				}
				check(t, dir, map[string]string{"90.conf": "fourth"})
				check(t, above, map[string]string{filepath.Base(beside): "original", filepath.Base(beside) + ".2": "second"})
				if diff := cmp.Diff(map[string]bool{"90.conf": true}, names()); diff != "" {
					t.Errorf("names seen in the directory (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// If the daemon uses a link to the directory, the directory itself can have any name.
func TestWrite_linkedDropInDirectory(t *testing.T) {
	for _, kind := range readWholeDirs {
		t.Run(kind, func(t *testing.T) {
			root := dirWith(t, nil)
			dir, link := filepath.Join(root, "vendor/files"), filepath.Join(root, kind)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Dir(link), 0o755),
				os.Symlink(dir, link)); err != nil {
				t.Fatal(err)
			}
			names := namesSeen(t, dir)
			for _, content := range []string{"first", "second"} {
				if err := Write(filepath.Join(link, "90.conf"), []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			check(t, dir, map[string]string{"90.conf": "second"})
			if diff := cmp.Diff(map[string]bool{"90.conf": true}, names()); diff != "" {
				t.Errorf("names seen in the directory (-want +got):\n%s", diff)
			}
		})
	}
}

// namesSeen watches a directory. The returned function returns all names that the directory has contained since then.
func namesSeen(t *testing.T, dir string) func() map[string]bool {
	t.Helper()
	watcher, err := fsnotify.NewBufferedWatcher(100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	return func() map[string]bool {
		last := filepath.Join(dir, "last") // the kernel queues this event after those of the directory
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
		return seen
	}
}

// Files with the same name in two directories have separate backups.
func TestBesides(t *testing.T) {
	for target, want := range map[string][2]string{
		"/etc/containerd/rdma-spec.json":                   {"/etc/containerd", "rdma-spec.json"},
		"/etc/crio/crio.conf.d/90-rdma-spec.conf":          {"/etc/crio", "crio.conf.d-90-rdma-spec.conf"},
		"/etc/systemd/system/containerd.service.d/90.conf": {"/etc/systemd/system", "containerd.service.d-90.conf"},
		"/etc/crio/crio.conf.d/more.d/90.conf":             {"/etc/crio", "crio.conf.d-more.d-90.conf"},
		"/etc/containerd/conf.d.old/90.toml":               {"/etc/containerd/conf.d.old", "90.toml"},
		"/opt/nri/plugins/90-rdma":                         {"/opt/nri", "plugins-90-rdma"},
		"/var/opt/nri/plugins/90-rdma":                     {"/var/opt/nri", "plugins-90-rdma"},
		"/file.d":                                          {"/", "file.d"},
		"/x.d/file":                                        {"/", "x.d-file"},
	} {
		if dir, name := backupPlace(target, target); dir != want[0] || name != want[1] {
			t.Errorf("besides(%q) = %q, %q; want %q", target, dir, name, want)
		}
	}
}
