// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/race"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// leftTree is a node as a run left it that was killed.
type leftTree struct {
	root, after string
	before      map[string]string // the node's files before the run
}

// containerdFiles returns what a containerd reads of a node, as one text.
func containerdFiles(t *testing.T, root string) string {
	t.Helper()
	all := nodeFiles(t, root)
	for path := range all {
		if !strings.HasPrefix(path, "etc/containerd/") && !strings.HasPrefix(path, "opt/nri/") {
			delete(all, path)
		}
	}
	return fmt.Sprint(all)
}

// copyOf copies a node. The path is short, since sockets are below it.
func copyOf(t *testing.T, root string) (copied string) {
	t.Helper()
	copied, err := os.MkdirTemp("", "node")
	t.Cleanup(func() { _ = os.RemoveAll(copied) }) // in the temporary directory: nothing is lost
	if err = errors.Join(err, os.CopyFS(copied, os.DirFS(root))); err != nil {
		t.Fatal(err)
	}
	return copied
}

// starts starts a containerd that was built for the node with a copy of the tree, as it is and with NRI on, and then
// reverts.
func (l leftTree) starts(t *testing.T) {
	t.Helper()
	program, on := repository.Containerd(t, "2.4.2"), copyOf(t, l.root)
	if got := done(t, on, "nri"); !strings.HasPrefix(got.Stdout, "nri: nothing to change") {
		expectServes(t, program, copyOf(t, l.root), l.after, false)
	}
	expectServes(t, program, on, l.after, true)
	done(t, l.root, "--revert")
	unchanged(t, l.root, l.before, l.after+", and --revert")
}

// expectServes starts a containerd whose files are those of a node, with the real plugin in place of the one that is
// installed, and waits until it serves CRI, and has launched the plugin where NRI is on. The node has other files
// afterwards.
func expectServes(t *testing.T, program, root, after string, nri bool) {
	t.Helper()
	log, _ := started(t, program, root)
	await.Success(t, await.Timeout, program+" serves after "+after, func() error {
		said, err := os.ReadFile(log)
		runtimes, _, criErr := cri.Connect(t.Context(), filepath.Join(root, "run/containerd/containerd.sock"), "/",
			cri.AnswersWithin)
		for _, r := range runtimes {
			r.Close()
		}
		err = errors.Join(err, criErr)
		switch {
		case err == nil && nri != containerd.Exists(filepath.Join(root, "var/run/nri/nri.sock")):
			err = fmt.Errorf("NRI serves: %t", !nri)
		case err == nil && nri && containerd.Exists(filepath.Join(root, launchedPlugin)) &&
			!strings.Contains(string(said), `msg="plugin invocation order"`):
			err = errors.New("the plugin is not registered")
		}
		if err != nil {
			err = fmt.Errorf("%w:\n%s", err, said)
		}
		return err
	})
}

// launchedPlugin is where a containerd of a node finds the plugin.
const launchedPlugin = "opt/nri/plugins/90-rdma"

// started starts a containerd whose files are those of a node, until the test ends. Its output goes to the log, and the
// channel has how it ended.
func started(t *testing.T, program, root string) (log string, ended <-chan error) {
	t.Helper()
	const start = `cd "$0"; mkdir -p proc sys dev
mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev
mount --bind "$1" usr/bin/containerd
[ ! -e ` + launchedPlugin + ` ] || mount --bind "$2" ` + launchedPlugin + `
exec chroot . /usr/bin/containerd`
	cmd := exec.Command("unshare", "--fork", "--kill-child", "--pid", "--mount", "--net", "sh", "-ec", start, root,
		program, filepath.Join(repository.Build(t).Dir, "nri-rdma"))
	file, err := os.Create(filepath.Join(root, "log"))
	if err == nil {
		cmd.Stdout, cmd.Stderr = file, file
		err = child.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	exits := make(chan error, 1)
	waited := make(chan struct{})
	go func() { defer close(waited); exits <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has no state that counts, or has ended
		<-waited
		_ = file.Close() // the process wrote it
	})
	return file.Name(), exits
}

func TestMain(m *testing.M) { repository.Main(m) }

// A killed run leaves the first files of a plan: containerd starts with each such state, and a revert works.
func TestConfigure_partialPlanStarts(t *testing.T) {
	if race.Detector {
		t.Skip("runs containerds, and the race detector does not see it")
	}
	trees := map[string]leftTree{} // those that differ for a containerd
	for _, what := range []string{"--all", "plugin --launched"} {
		for most := 0; ; most++ {
			root, before := configureNode(t)
			o := &Options{Root: root, node: "/", ledger: openedLedger(t, root)}
			installs := programs{from: filepath.Join(root, "nri-rdma"), prefix: usrLocal}
			planned, err := o.plugin(installs, what != "--all")
			goals, plan := planned.goals, planned.plan.Changed()
			if err == nil && what == "--all" {
				planned, err = o.nri(t.Context(), "", false)
				goals, plan = append(planned.goals, goals...), append(plan, planned.plan.Changed()...)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = o.ledger.Apply(plan[:min(most, len(plan))], nil, goals...)
			if o.ledger.Close(); err != nil {
				t.Fatal(err)
			}
			if read := containerdFiles(t, root); trees[read].root == "" {
				trees[read] = leftTree{copyOf(t, root), fmt.Sprintf("%d files of %s", most, what), before}
			}
			if most == len(plan) {
				break
			}
		}
	}
	if len(trees) < 4 {
		t.Errorf("%d distinct trees, want those of before, between and after, of --all and of --launched", len(trees))
	}
	for _, tree := range trees {
		tree.starts(t)
	}
}

// openedLedger returns the ledger of a node.
func openedLedger(t *testing.T, root string) *change.Ledger {
	t.Helper()
	l, err := change.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
