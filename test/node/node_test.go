// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package node_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// limit is the timeout for one boot and for the commands on that node. A busy machine takes a fifth of it.
const limit = 2 * time.Minute

// boot starts a node, which ends with the test.
func boot(t *testing.T, options node.Options) *node.Node {
	t.Helper()
	parts, err := node.Prepare(t.Context(), os.Stderr, node.Core)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	n, err := node.Boot(ctx, parts, options)
	if err != nil {
		if n != nil {
			t.Log(n.Console())
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	t.Logf("booted in %.1f s", n.BootTime.Seconds())
	return n
}

// result is the result of a command on the node.
type result struct {
	Status   int
	Out, Err string
}

// script runs a shell script on the node.
func script(t *testing.T, n *node.Node, in, text string) result {
	t.Helper()
	got, err := runScript(t.Context(), n, in, text)
	if err != nil {
		t.Fatalf("%s: %v\n%s", text, err, n.Console())
	}
	return got
}

// runScript is like script, for goroutines other than the test's own.
func runScript(ctx context.Context, n *node.Node, in, text string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command := node.Command{Args: []string{"sh", "-c", text}, Env: []string{"GREETING=good day"},
		Out: &stdout, Err: &stderr}
	if in != "" {
		command.In = strings.NewReader(in)
	}
	status, err := n.Run(ctx, command)
	return result{status, stdout.String(), stderr.String()}, err
}

func TestNode(t *testing.T) {
	share := scratch.Dir(t)
	n := boot(t, node.Options{Share: share})

	for _, test := range []struct {
		name, in, script string
		want             result
	}{
		{"exit status", "", "exit 7", result{Status: 7}},
		{"a signal's status", "", "kill -TERM $$", result{Status: 143}},
		{"streams are kept apart", "", "echo to out; echo to err >&2", result{Out: "to out\n", Err: "to err\n"}},
		{"input", "first\nlast", "cat", result{Out: "first\nlast"}},
		{"no input", "", "cat", result{}},
		{"environment", "", `echo "$GREETING, $RDMA_NODE"`, result{Out: "good day, 1\n"}},
		{"a daemon left behind does not hold the command", "", "sleep 1000 & echo gone", result{Out: "gone\n"}},
		{"memlock is the kernel's default", "", "ulimit -l; ulimit -H -l", result{Out: "8192\n8192\n"}},
		{"a CPU that locks up ends the node", "", "cat /proc/sys/kernel/softlockup_panic /proc/sys/kernel/watchdog_thresh",
			result{Out: "1\n30\n"}},
		{"files are as many as containerd's unit allows", "", "ulimit -n", result{Out: "1048576\n"}},
		{"cgroup controllers reach below the root", "",
			"for c in cpu memory pids rdma; do grep -ow $c /sys/fs/cgroup/cgroup.subtree_control; done",
			result{Out: "cpu\nmemory\npids\nrdma\n"}},
		{"file systems", "", "for d in / /run /dev/shm /var/lib; do stat -f -c %T $d; done",
			result{Out: "overlayfs\ntmpfs\ntmpfs\next2/ext3\n"}},
		{"the host's files, writable", "",
			"echo changed >>/etc/hostname && ls -d /work-of-the-guest 2>/dev/null; mkdir /work-of-the-guest", result{}},
		{"ports", "", "cat /sys/class/infiniband/rxe*/ports/1/state",
			result{Out: "4: ACTIVE\n4: ACTIVE\n1: DOWN\n"}},
		{"verbs devices", "", "ibv_devices | awk '/rxe/ {print $1}'", result{Out: "rxe0\nrxe1\nrxe2\n"}},
		{"character devices", "", "cd /dev/infiniband && stat -c '%n %F' rdma_cm uverbs0 umad0",
			result{Out: "rdma_cm character special file\nuverbs0 character special file\numad0 character special file\n"}},
		{"parts", "",
			`cd $RDMA_NODE_PARTS && ls -d containerd-*/containerd runc/runc images/pause.tar images/busybox.tar cni/bridge`,
			result{Out: "cni/bridge\ncontainerd-1.6/containerd\ncontainerd-1.7.35/containerd\ncontainerd-2.2.9/containerd\ncontainerd-2.3.7/containerd\n" +
				"containerd-2.4.2/containerd\nimages/busybox.tar\nimages/pause.tar\nrunc/runc\n"}},
		{"share", "", "echo kept >/run/host-share/file", result{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, script(t, n, test.in, test.script)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}

	if got, err := os.ReadFile(filepath.Join(share, "file")); err != nil || string(got) != "kept\n" {
		t.Errorf("the shared file holds %q, %v", got, err)
	}
	if _, err := os.Stat("/work-of-the-guest"); !os.IsNotExist(err) {
		t.Errorf("the guest's directory reached the host: %v", err)
	}
	if out := script(t, n, "",
		"ibv_rc_pingpong -d rxe0 -g 1 -s 4096 -n 2 >/dev/null & until ss -ltn | grep -q :18515; do sleep 0.1; done; "+
			"ibv_rc_pingpong -d rxe0 -g 1 -s 4096 -n 2 10.0.2.15"); !strings.Contains(out.Out, "bytes in") {
		t.Errorf("no transfer between two processes: %+v", out)
	}
	_, err := n.Run(t.Context(), node.Command{Args: []string{"/no/such/program"}})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestHungCommand(t *testing.T) {
	n := boot(t, node.Options{HCAs: 1})
	script(t, n, "", "echo last words >/dev/console")
	await.That(t, limit, "the console has what is said on it",
		func() bool { return strings.Contains(n.Console(), "last words") })
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, node.ErrTimeout)
	defer cancel()
	if _, err := n.Run(ctx, node.Command{Args: []string{"sleep", "1000"}}); !errors.Is(err, node.ErrTimeout) {
		t.Errorf("a command that hangs: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(n.Console(), "last words") {
		t.Errorf("the console is lost with the node:\n%s", n.Console())
	}
}

func TestPanic(t *testing.T) {
	n := boot(t, node.Options{HCAs: -1})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := n.Run(ctx, node.Command{Args: []string{"sh", "-c", "echo c >/proc/sysrq-trigger"}})
	var died *node.DiedError
	if !errors.As(err, &died) {
		t.Fatalf("a kernel that panics: %v", err)
	}
	if !strings.Contains(n.Console(), "Kernel panic - not syncing: sysrq triggered crash") {
		t.Errorf("the console does not say why:\n%s", n.Console())
	}
	if died.LockedUp {
		t.Error("an ordinary panic counts as a lockup")
	}
}
