// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// register does what a plugin does that has registered. The policy is in force until it is closed.
func register(t *testing.T, root string) *inforce.Writer {
	t.Helper()
	p, err := policy.New(policy.Default())
	if err != nil {
		t.Fatal(err)
	}
	w := &inforce.Writer{Root: root}
	t.Cleanup(w.Close)
	if err := w.Write(p, "the defaults"); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWaits: it ends within a second of the registration, and says every 30 s what it waits for.
func TestWaits(t *testing.T) {
	for name, test := range map[string]struct {
		before func(t *testing.T, root string)
		says   string
	}{
		"no plugin has run": {func(*testing.T, string) {}, "no such file or directory"},
		"another plugin has ended": {func(t *testing.T, root string) { register(t, root).Close() },
			"the plugin that wrote the policy has exited"},
		"a plugin of another version has ended": {func(t *testing.T, root string) {
			register(t, root).Close()
			scratch.File(t, filepath.Join(root, inforce.File), "apiVersion: rdma-spec/v9\n", 0o644)
		}, "the plugin that wrote the policy has exited"},
	} {
		t.Run(name, func(t *testing.T) {
			root := scratch.Dir(t, "run")
			test.before(t, root)
			synctest.Test(t, func(t *testing.T) {
				var stderr bytes.Buffer
				ended := make(chan error, 1)
				go func() { ended <- untilRegistered(t.Context(), &stderr, root) }()
				time.Sleep(75*time.Second + lookEvery/2) // the clock of the bubble
				select {
				case err := <-ended:
					t.Fatalf("it ended before the registration: %v", err)
				default:
				}
				register(t, root)
				begin := time.Now()
				if err := <-ended; err != nil || time.Since(begin) > lookEvery {
					t.Errorf("after %s: %v", time.Since(begin), err)
				}
				lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
				if len(lines) != 3 {
					t.Errorf("in 75 s it said %d lines, want 3: %q", len(lines), lines)
				}
				for _, line := range lines {
					if !strings.HasPrefix(line, "rdma-spec: waiting until nri-rdma is registered") ||
						!strings.HasSuffix(line, test.says) {
						t.Errorf("it said %q, want %q in it", line, test.says)
					}
				}
			})
		})
	}
}

// TestWait_registered: it ends at once, without a word, also where the plugin is of another version.
func TestWait_registered(t *testing.T) {
	root := scratch.Dir(t, "run")
	register(t, root)
	scratch.File(t, filepath.Join(root, inforce.File), "apiVersion: rdma-spec/v9\n", 0) // the same file, which stays locked
	var stderr bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := untilRegistered(t.Context(), &stderr, root); err != nil || time.Since(begin) > 0 || stderr.Len() > 0 {
			t.Errorf("after %s: %v, %s", time.Since(begin), err, &stderr)
		}
	})
}

func TestWait_timeout(t *testing.T) {
	root := scratch.Dir(t, "run")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var stderr bytes.Buffer
		begin := time.Now()
		err := untilRegistered(ctx, &stderr, root)
		if !errors.Is(err, cli.ErrProblemFound) || time.Since(begin) != 5*time.Minute ||
			!strings.Contains(stderr.String(), "timed out waiting for nri-rdma to register on this node: no policy is in force") {
			t.Errorf("after %s: %v\n%s", time.Since(begin), err, &stderr)
		}
	})
}

// TestWait_notTrusted: what anybody could have written proves nothing, and waiting would not help.
func TestWait_notTrusted(t *testing.T) {
	root := scratch.Dir(t, "run")
	register(t, root)
	if err := os.Chmod(filepath.Join(root, filepath.Dir(inforce.File)), 0o777); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	err := untilRegistered(t.Context(), &stderr, root)
	if err == nil || !strings.Contains(err.Error(), "is not trusted: users other than root can write to it") {
		t.Errorf("%v, %s", err, &stderr)
	}
}

func TestCommand(t *testing.T) {
	root := scratch.Dir(t, "run")
	for args, want := range map[string]string{
		"--timeout=-5s --root=" + root: "must not be negative",
		"now --root=" + root:           "unknown command",
	} {
		var stderr strings.Builder
		status := cli.Run(Command(), func() error { return nil }, strings.Fields(args), nil, &stderr, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit status %d: %s", args, status, &stderr)
		}
	}
}
