// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
)

// failingFiles fails at one operation.
type failingFiles struct{ at, now int }

var errFull = errors.New("no space left on device")

func (f *failingFiles) put(path string, old, content []byte, mode fs.FileMode) error {
	if f.now++; f.now == f.at {
		return errFull
	}
	return atomicfile.Change(path, old, content, mode)
}

// failing has the operation of a ledger fail that has a number: the fourth one is the check, which it returns.
func failing(l *Ledger, at int) (check func() error) {
	l.put = (&failingFiles{at: at % 4}).put
	return func() error {
		if at == 4 {
			return errFull
		}
		return nil
	}
}

func TestApplyPutsBackWhereSomethingFails(t *testing.T) {
	old := map[string]string{"a": "old a", "b": "old b"}
	for at := 1; at <= 4; at++ {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			n := newNode(t, old)
			l := n.open()
			check := failing(l, at)
			if err := l.Apply(n.plan("new/c", "c", "a", "new a", "b", "new b"), check, record.Goal{Feature: "nri"}); err == nil ||
				err.Error() != errFull.Error() {
				t.Errorf("Apply: %v, want only %v", err, errFull)
			}
			n.check(old)
			if len(l.Features()) > 0 {
				t.Errorf("features are left: %q", l.Features())
			}
		})
	}
}

func TestRevertIsWholeOrNothing(t *testing.T) {
	old := map[string]string{"a": "old a", "b": "old b"}
	changed := map[string]string{"a": "new a", "b": "new b", "new/": "", "new/c": "c"}
	for at := 1; at <= 4; at++ {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			n := newNode(t, old)
			n.apply("nri", "new/c", "c", "a", "new a", "b", "new b")
			l := n.open()
			check := failing(l, at)
			if err := revert(l, check, "nri"); err == nil || err.Error() != errFull.Error() {
				t.Errorf("Revert: %v, want only %v", err, errFull)
			}
			n.check(changed)
			l.Close()
			if err := n.revert("nri"); err != nil {
				t.Error(err)
			}
			n.check(old)
		})
	}
}

// A file that is removed since it names another one is there again where something fails.
func TestRevertWithAFileThatNamesAnother(t *testing.T) {
	changed := map[string]string{"a": "new a", "hook": "hook", "spec": "names the hook"}
	for at := 1; at <= 4; at++ {
		n := newNode(t, map[string]string{"a": "old a"})
		n.apply("cdi", "hook", "hook", "a", "new a")
		n.set(map[string]string{"spec": "names the hook"})
		l := n.open()
		l.put = (&failingFiles{at: at}).put // of the three operations of a revert
		back, err := l.Reversal("cdi")
		if diff := cmp.Diff(map[string][]byte{n.path("hook"): nil, n.path("a"): []byte("old a")}, back.Contents()); diff != "" {
			t.Errorf("%v, the files (-want +got):\n%s", err, diff)
		}
		if err := back.RemoveBefore(n.path("hook"), n.path("spec")); err != nil {
			t.Fatal(err)
		}
		err = l.Revert(back, nil)
		l.Close()
		if at > 3 {
			n.check(map[string]string{"a": "old a"})
			if err != nil {
				t.Errorf("Revert: %v", err)
			}
			continue
		}
		n.check(changed)
		if err == nil || err.Error() != errFull.Error() {
			t.Errorf("Revert: %v, want only %v", err, errFull)
		}
	}
}

// What cannot be read cannot be planned, and the error is one line.
func TestPlanOfWhatIsNoFile(t *testing.T) {
	n := newNode(t, map[string]string{"a": "old"})
	if err := os.Mkdir(n.path("directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	plan, err := Whole(File{Path: n.path("a"), Content: []byte("new")}, File{Path: n.path("directory"), Content: []byte("x")})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(),
		n.path("directory")) || len(plan) > 0 {
		t.Errorf("Whole: %v, %v", plan, err)
	}
}

const (
	childVariable = "CHANGE_TEST_CHILD"
	// limitVariable is how large a file of the child can become: as on a full disk, a write gets through in part.
	limitVariable = "CHANGE_TEST_LIMIT"
)

// A file of others, and with a block of ours.
var (
	ofOthers = "[others] # theirs"
	withOurs = string(tomledit.WithBlock([]byte(ofOthers), []byte("[x]\n  y = 1\n")))
)

// On a full disk, nothing is changed, wherever it happens.
func TestApply_fullDisk(t *testing.T) {
	old := map[string]string{"a": "old a", "b": "old b", "others.toml": ofOthers}
	for size := 0; size < 2000; size += 100 {
		n := newNode(t, old)
		cmd := exec.Command("/proc/self/exe", n.root)
		cmd.Env = append(os.Environ(), childVariable+"=apply", limitVariable+"="+strconv.Itoa(size))
		out, err := cmd.CombinedOutput()
		if err == nil {
			if size < 200 {
				t.Errorf("%d bytes are enough", size)
			}
			continue
		}
		if text := string(out); strings.Count(text, "\n") != 1 || !strings.Contains(text, "file too large") {
			t.Errorf("%d bytes: %s", size, text)
		}
		n.check(old)
	}
}

// A file in a directory that cannot be written leaves the others as they were.
func TestReadOnlyDir(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("chattr needs root")
	}
	n := newNode(t, map[string]string{"a": "old a"})
	locked := n.path("locked")
	if err := os.Mkdir(locked, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chattr", "+i", locked).CombinedOutput(); err != nil {
		t.Skipf("chattr: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", locked).Run() }) // so that it can be removed
	err := n.open().Apply(n.plan("a", "new a", "locked/c", "c"), nil, record.Goal{Feature: "nri"})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(),
		"locked/c: operation not permitted") {
		t.Errorf("Apply: %v", err)
	}
	n.check(map[string]string{"a": "old a", "locked/": ""})
}

// strace counts the system calls of a process's first thread. Only what is locked to it before main is sure to stay
// there.
func init() {
	if os.Getenv(childVariable) != "" {
		runtime.LockOSThread()
	}
}

// TestMain runs this program as a child that applies or reverts, and can be killed.
func TestMain(m *testing.M) {
	what := os.Getenv(childVariable)
	if what == "" {
		os.Exit(m.Run())
	}
	dir := os.Args[1]
	if os.Getenv(limitVariable) != "" {
		signal.Ignore(syscall.SIGXFSZ)
		size, err := strconv.ParseUint(os.Getenv(limitVariable), 10, 64)
		if err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size,
			Max: size})); err != nil {
			fmt.Println("the test is broken:", err)
			os.Exit(1)
		}
	}
	l, err := Open(dir)
	if err == nil && what == "apply" {
		path := func(name string) string { return filepath.Join(dir, "node", name) }
		var plan Plan
		if plan, err = Whole(
			File{Path: path("new.d/c"), Content: []byte("new c")}, File{Path: path("opt/nri/plugins/90-rdma"),
				Content: []byte("new plugin"), Mode: 0o755},
			File{Path: path("a"), Content: []byte("new a")}, File{Path: path("b"), Content: []byte("new b")},
			File{Path: path("others.toml"), Content: []byte(withOurs), Parts: []record.Part{{Feature: "nri", Path: []string{"x"}}}},
		); err == nil {
			err = l.Apply(plan, nil, record.Goal{Feature: "nri"})
		}
	} else if err == nil {
		err = revert(l, nil, "nri")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// However a run is killed, each file is old or new, the next run completes it, and a revert gives the original.
func TestApplyAndRevert_killedAtSystemCalls(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector makes system calls of its own")
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed")
	}
	old := map[string]string{"a": "old a", "b": "old b", "others.toml": ofOthers}
	kills := 0
	for _, what := range []string{"apply", "revert"} {
		for _, call := range []string{"openat", "write", "pwrite64", "ftruncate", "fchmod", "fchmodat", "fchown", "fsync",
			"mkdirat", "renameat", "unlinkat"} {
			for when := 1; ; when++ {
				n := newNode(t, old)
				run := func(what string, with ...string) error {
					cmd := exec.Command("/proc/self/exe", n.root)
					if len(with) > 0 {
						exe, err := os.Executable()
						if err != nil {
							t.Fatal(err)
						}
						cmd = exec.Command(with[0], append(with[1:], exe, n.root)...)
					}
					cmd.Env = append(os.Environ(), childVariable+"="+what)
					out, err := cmd.CombinedOutput()
					if err != nil && len(with) == 0 {
						t.Errorf("%s after a kill at %s %d: %v\n%s", what, call, when, err, out)
					}
					return err
				}
				if what == "revert" && run("apply") != nil {
					return
				}
				err := run(what, strace, "-qq", "-o", "/dev/null", "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, when))
				for name, contents := range map[string][]string{"a": {"old a", "new a"}, "b": {"old b", "new b"},
					"others.toml": {ofOthers, withOurs}, "new.d/c": {"", "new c"}, "opt/nri/plugins/90-rdma": {"", "new plugin"}} {
					got, readErr := os.ReadFile(n.path(name))
					if errors.Is(readErr, fs.ErrNotExist) && contents[0] == "" {
						continue
					}
					if readErr != nil || string(got) != contents[0] && string(got) != contents[1] || len(got) == 0 {
						t.Errorf("killed at %s %d of %s: %s is %q, %v", call, when, what, name, got, readErr)
					}
				}
				for _, only := range []string{"new.d/c", "opt/nri/plugins/90-rdma"} { // a daemon reads the whole directory
					entries, _ := os.ReadDir(filepath.Dir(n.path(only)))
					for _, entry := range entries {
						if entry.Name() != filepath.Base(only) {
							t.Errorf("killed at %s %d of %s: %s is beside %s", call, when, what, entry.Name(), only)
						}
					}
				}
				if run(what) == nil && what == "apply" {
					_ = run("revert")
				}
				for name, content := range old {
					if got, readErr := os.ReadFile(n.path(name)); readErr != nil || string(got) != content {
						t.Errorf("reverted after a kill at %s %d of %s: %s is %q, %v", call, when, what, name, got, readErr)
					}
				}
				if _, statErr := os.Stat(n.path("new.d")); statErr == nil {
					t.Errorf("reverted after a kill at %s %d of %s: new.d is still there", call, when, what)
				}
				if err == nil {
					break
				}
				kills++
			}
		}
	}
	t.Logf("killed %d times", kills)
	if kills < 50 {
		t.Errorf("killed %d times, want more: does the list name the calls?", kills)
	}
}
