// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Limits of processes.
var (
	unlimited = limits.Process{Memlock: spec.Rlimit{Soft: spec.Unlimited, Hard: spec.Unlimited}}
	eight     = limits.Process{Memlock: spec.Rlimit{Soft: 8 << 20, Hard: 8 << 20}}
)

// self is the process ID of verify in the tests. It is the container's first process unless a test says otherwise.
const self = 1

// mlx5Node has two InfiniBand HCAs.
func mlx5Node() hcatest.Node {
	node := hcatest.V100Node()
	for i := range node.HCAs {
		node.HCAs[i].Driver = "mlx5_core"
	}
	return node
}

// inContainer is a container on a node, with some of the node's device files, some of which do not open.
func inContainer(t *testing.T, node hcatest.Files, holds limits.Process, devices map[string]error) container {
	t.Helper()
	namespace := hcatest.Files{}
	for _, process := range []string{"proc/1", "proc/9"} {
		if len(node.Under(process+"/root")) == 0 {
			namespace[process+"/root"] = hcatest.Link("../..")
		}
		namespace[process+"/mountinfo"] = "32 30 0:6 / /dev/shm rw - tmpfs shm rw,size=1048576k\n"
	}
	namespace["proc/1/net/fib_trie"], namespace["proc/9/net/fib_trie"] = "", ""
	maps.Copy(namespace, node)
	root := namespace.Root(t)
	dir := filepath.Join(root, "dev/infiniband")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for name := range devices {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(size int) error {
		if spec.Limit(size) > holds.Memlock.Soft && (!holds.IPCLock || holds.UserNamespace) {
			return unix.ENOMEM
		}
		return nil
	}
	return container{
		root:    root,
		self:    self,
		process: func(int) (limits.Process, error) { return holds, nil },
		open: func(path string) error {
			err, there := devices[filepath.Base(path)]
			if !there {
				return unix.ENOENT
			}
			return err
		},
		register: func(_ string, _ verbs.Driver, size int) error {
			if err := lock(size); err != nil {
				return &verbs.Error{Command: "REG_MR", Err: err}
			}
			return nil
		},
		lock: lock,
	}
}

// facts returns what verify says of a container about some checks, one line each, and its verdict.
func facts(t *testing.T, c container, pid int, about ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := verify(&out, c, 64<<20, pid, cli.FormatJSON)
	var found Result
	if decoding := json.Unmarshal(out.Bytes(), &found); decoding != nil {
		t.Fatalf("%v, %v\n%s", err, decoding, &out)
	}
	failed := slices.ContainsFunc(found.Findings, func(f doctor.Finding) bool { return f.Status == doctor.Wrong })
	if errors.Is(err, cli.ErrProblemFound) != failed || len(found.Verdict.Causes) > 0 != failed {
		t.Errorf("error %v, causes %v; a finding says that RDMA fails: %v", err, found.Verdict.Causes, failed)
	}
	var lines strings.Builder
	for _, f := range found.Findings {
		if slices.Contains(about, f.Check) {
			fmt.Fprintf(&lines, "%-4s  %s\n", shown[f.Status], f.Text)
		}
	}
	return strings.ReplaceAll(lines.String(), c.root, "") + found.Verdict.Text + "\n"
}

var all = map[string]error{"uverbs0": nil, "uverbs1": nil, "rdma_cm": nil}

func TestVerify(t *testing.T) {
	node := mlx5Node().Files().With(hcatest.Files{
		"usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0":              "",
		"usr/lib/x86_64-linux-gnu/libibverbs.so.1":                      hcatest.Link("libibverbs.so.1.14.44.0"),
		"usr/lib/x86_64-linux-gnu/libmlx5.so.1":                         "",
		"usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so":        hcatest.Link("../libmlx5.so.1"),
		"usr/lib/x86_64-linux-gnu/libibverbs/libmlx4-rdmav34.so":        hcatest.Link("../libmlx4.so.1"),
		"usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so/ignored": "",
	})
	var says golden.Cases
	for name, c := range map[string]container{
		"all is well":     inContainer(t, node, unlimited, all),
		"memlock too low": inContainer(t, mlx5Node().Files(), eight, map[string]error{"uverbs1": nil}),
	} {
		var out bytes.Buffer
		err := verify(&out, c, 64<<20, 0, cli.FormatText)
		if errors.Is(err, cli.ErrProblemFound) != (name == "memlock too low") {
			t.Errorf("%s: error %v", name, err)
		}
		says.Add(t, name, out.String())
	}
	says.Compare(t, "testdata/verify.txt")
	if err := verify(&full{}, inContainer(t, node, unlimited, all), 1, 0, cli.FormatText); !errors.Is(err, errFull) {
		t.Errorf("on a full disk: %v", err)
	}
}

func TestVerifyCalledWrongly(t *testing.T) {
	for _, size := range []string{"unlimited", "0", "-1", "64 MB", "17Ti", ""} {
		if stderr, status := command(t, "verify", "--lock", size); status != 2 || !strings.Contains(stderr,
			"specify a size of at most 16Ti") {
			t.Errorf("--lock %q: exit status %d, %s", size, status, stderr)
		}
	}
	for _, pid := range []string{"0", "-1"} {
		if stderr, status := command(t, "verify", "--pid", pid); status != 2 || !strings.Contains(stderr,
			"is not the ID of a process") {
			t.Errorf("--pid %s: exit status %d, %s", pid, status, stderr)
		}
	}
	if stderr, status := command(t, "verify", "--pid", "2147483647"); status != 3 || !strings.Contains(stderr,
		"process 2147483647: ") {
		t.Errorf("a process that does not run: exit status %d, %s", status, stderr)
	}
}

// What is locked for real is what the kernel allows this process.
func TestThisContainer(t *testing.T) {
	c := thisContainer()
	if err := c.lock(4096); err != nil {
		t.Errorf("one page: %v", err)
	}
	missing := filepath.Join(scratch.Dir(t), "uverbs0")
	if err := c.open(missing); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := c.register(missing, verbs.RXE, 4096); !errors.Is(err, unix.ENOENT) {
		t.Errorf("registering with a device that is not there: %v", err)
	}
	if err := c.open("/dev/null"); err != nil {
		t.Error(err)
	}
	held, err := c.process(c.self)
	if err != nil || held.Memlock.Hard == 0 {
		t.Errorf("this process: %+v, %v", held, err)
	}
	if seen := process.Look(c.root, c.self, false, time.Minute); seen.Unread != "" ||
		slices.ContainsFunc(seen.Addresses, netip.Addr.IsLoopback) {
		t.Errorf("%+v", seen)
	}
}

var errFull = errors.New("no space left on device")

// full is a disk that is full.
type full struct{}

func (*full) Write([]byte) (int, error) { return 0, errFull }

// command is a call of the command.
func command(t *testing.T, args ...string) (stderr string, status int) {
	t.Helper()
	var notes bytes.Buffer
	status = cli.Run(Command(), func() error { return nil }, args[1:], nil, io.Discard, &notes)
	return notes.String(), status
}
