// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// childVariable has TestMain run this program as a child that configures, and can be killed.
const childVariable = "CONFIGURE_TEST_CHILD"

// strace counts the system calls of a process's first thread. Only what is locked to it before main is sure to stay there.
func init() {
	if os.Getenv(childVariable) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	args := os.Getenv(childVariable)
	if args == "" {
		repository.Main(m)
	}
	got := call(strings.Fields(args)...)
	fmt.Print(got.Stdout, got.Stderr)
	os.Exit(got.Status)
}

// unfinished is the name of a file that a killed run has not finished.
var unfinished = regexp.MustCompile(`/\.[^/]*[0-9]+$`)

// leftBehind returns what is below a folder of a node that no run needs: unfinished files, and contents.
func leftBehind(t *testing.T, root string) (left []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && (unfinished.MatchString(path) || strings.Contains(path, "/configure/contents/")) {
			left = append(left, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return left
}

// TestKilledAtSystemCalls kills a run at each system call that writes to a file or changes a folder, and then reverts, or
// runs again and reverts. That gives the bytes of before, and nothing is left. With each tree that a kill leaves
// containerds start, with NRI, too. Package change has the same for all system calls.
func TestKilledAtSystemCalls(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector makes system calls of its own")
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is not installed: make deps")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args string, with ...string) (string, error) {
		cmd := exec.Command(self)
		if len(with) > 0 {
			cmd = exec.Command(with[0], append(with[1:], self)...)
		}
		cmd.Env = append(os.Environ(), childVariable+"=configure "+args)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	trees := map[string]leftTree{} // those that differ for a containerd
	for _, what := range []string{"--all --program ROOT/nri-rdma -o json", "plugin --launched --program ROOT/nri-rdma",
		"cdi --programs ROOT/opt/programs"} {
		kills := 0
		for _, call := range []string{"write", "mkdirat", "renameat", "unlinkat"} {
			for when := 1; ; when++ {
				root, _ := configureNode(t)
				programs := filepath.Join(root, "opt/programs")
				for _, name := range []string{"rdma-hook", "rdma-spec"} {
					scratch.File(t, filepath.Join(programs, name), "\x7fELF "+name, 0o600)
				}
				before := nodeFiles(t, root)
				args, at := strings.ReplaceAll(what, "ROOT", root)+" --root "+root, fmt.Sprintf("%s %s %d", what, call, when)
				_, killed := run(args, strace, "-qq", "-o", "/dev/null", "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, when))
				for _, folder := range []string{"opt/nri/plugins", "etc/containerd/conf.d", "etc/systemd/system", "etc/udev/rules.d"} {
					entries, _ := os.ReadDir(filepath.Join(root, folder))
					for _, entry := range entries {
						if strings.HasPrefix(entry.Name(), ".") && strings.HasSuffix(folder, ".d") {
							t.Errorf("%s: %s is in %s, which a daemon reads whole", at, entry.Name(), folder)
						}
					}
				}
				if read := containerdFiles(t, root); trees[read].root == "" {
					trees[read] = leftTree{copyOf(t, root), at, before}
				}
				if when%2 == 0 {
					if out, err := run(args); err != nil {
						t.Errorf("%s, and again: %v, %s", at, err, out)
					}
				}
				if out, err := run("--revert --root " + root); err != nil {
					t.Errorf("%s, and --revert: %v, %s", at, err, out)
				}
				if diff := cmp.Diff(before, nodeFiles(t, root)); diff != "" {
					t.Errorf("%s, and --revert (-before +after):\n%s", at, diff)
				}
				if left := leftBehind(t, root); len(left) > 0 {
					t.Errorf("%s, and --revert: %q is left", at, left)
				}
				if killed == nil {
					break
				}
				kills++
			}
		}
		t.Logf("%s: killed %d times", what, kills)
		if kills < 10 {
			t.Errorf("%s: killed %d times, want more: does the list name the calls?", what, kills)
		}
	}
	if len(trees) < 5 {
		t.Errorf("%d distinct trees, want those of before, between and after, of --all and of --launched", len(trees))
	}
	for _, tree := range trees {
		tree.starts(t)
	}
}
