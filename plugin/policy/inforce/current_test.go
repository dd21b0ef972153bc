// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

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

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// current is that of a process whose plugin is registered, and its log.
func current(o Options) (*Current, *bytes.Buffer) {
	log := &bytes.Buffer{}
	logger := logrus.New()
	logger.SetOutput(log)
	o.Log = logger
	o.Put = func(*policy.Policy) {}
	o.Loaded = func(bool) {}
	o.Registered = func() bool { return true }
	o.EverRegistered = func() bool { return false }
	return New(o), log
}

// runOnce has Run do what it was woken for.
func runOnce(t *testing.T, c *Current) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	await.That(t, await.Timeout, "awake", func() bool { return len(c.wake) == 0 })
	stop()
	<-ended
	t.Cleanup(c.Close)
}

// memlock is that of the policy in force.
func (c *Current) memlock() string { return string(c.Policy().Config().Memlock) }

// TestCurrent_NoFileBeforeAnAnswer: what is called between a connection and its answers touches no file, whose disk may
// stand still. Run writes what is to be written.
func TestCurrent_NoFileBeforeAnAnswer(t *testing.T) {
	root := scratch.Dir(t, KeptDir[1:])
	must.Succeed(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	o := Options{Root: root, Deployment: "DaemonSet.rdma-spec.a"}
	kept := Kept{root, o.Deployment}
	must.Succeed(t, kept.Write([]byte("memlock: 1Gi")))
	refused, _ := current(o)
	refused.Use(nil, "a file", errors.New("memlok: unknown key"))
	healthy, _ := current(o)
	healthy.Use(parsed(t, "memlock: 2Gi"), "a file", nil)
	if got := refused.memlock(); got != "1Gi" {
		t.Errorf("it goes on with %s", got)
	}
	gone := root + ".gone"
	must.Succeed(t, os.Rename(root, gone)) // what is read or written from here on is seen

	refused.TookOver(healthy.Leave())
	refused.HandedOver("memlok: 1", "containerd")
	if got, want := refused.memlock(), "2Gi"; got != want {
		t.Errorf("after a handover it goes on with %s, want %s of the process before", got, want)
	}
	healthy.TookOver(nil)
	healthy.Registers()
	refused.Registers()
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
	must.Succeed(t, os.Rename(gone, root))
	runOnce(t, healthy)
	expect(t, "published", root, "a file")
	if last, err := kept.Read(); err != nil || string(last.Policy.Text()) != "memlock: 2Gi" {
		t.Errorf("kept: %+v, %v", last, err)
	}
}

// TestCurrent_TookOverAnOlderText: what the process before has left, and this version cannot read, costs nothing: what
// is kept goes on.
func TestCurrent_TookOverAnOlderText(t *testing.T) {
	root := scratch.Dir(t, KeptDir[1:])
	o := Options{Root: root, Deployment: "DaemonSet.rdma-spec.a"}
	c, log := current(o)
	c.Use(nil, "a file", errors.New("memlok: unknown key"))
	must.Succeed(t, Kept{root, o.Deployment}.Write([]byte("memlock: 1Gi")))
	c.TookOver(&Left{"a file", "memlok: 2Gi"})
	runOnce(t, c)
	if got := c.memlock(); got != "1Gi" {
		t.Errorf("memlock %s is in force; the log says:\n%s", got, log)
	}
}

// TestKept_WritesOnce: the same text is not written again.
func TestKept_WritesOnce(t *testing.T) {
	root := scratch.Dir(t, KeptDir[1:])
	k := Kept{root, "DaemonSet.rdma-spec.a"}
	must.Succeed(t, k.Write([]byte("{}")))
	first, err := os.Stat(k.path())
	must.Succeed(t, err, k.Write([]byte("{}")))
	if again, err := os.Stat(k.path()); err != nil || !os.SameFile(first, again) {
		t.Errorf("it was replaced: %v", err)
	}
	must.Succeed(t, k.Write([]byte("{memlock: 1Gi}")))
	if again, err := os.Stat(k.path()); err != nil || os.SameFile(first, again) {
		t.Errorf("another text did not replace it: %v", err)
	}
}

// fillUp writes a file until the disk is full.
func fillUp(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	must.Succeed(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 512))
	}
	must.Succeed(t, file.Close())
}

// TestCurrent_FullDisk: where the policy in force cannot be written, the one before it is in force no longer, and one
// warning says so, until it can be written.
func TestCurrent_FullDisk(t *testing.T) {
	root := scratch.Dir(t, "run/rdma-spec")
	dir := filepath.Join(root, "run/rdma-spec")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k,mode=755"); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	synctest.Test(t, func(t *testing.T) {
		c, log := current(Options{Root: root})
		defer c.Close()
		c.Registers()
		go c.Run(t.Context())
		synctest.Wait()
		expect(t, "the defaults", root, "the defaults")
		fill := filepath.Join(dir, "fill")
		fillUp(t, fill)
		c.Use(parsed(t, "memlock: 1Gi"), "a file", nil)
		synctest.Wait()
		fillUp(t, fill+".again") // with the room of the file that is gone
		time.Sleep(5 * again)    // synctest's clock
		synctest.Wait()
		if got, err := Read(root); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("in force is %+v, %v, and not the policy in force", got, err)
		}
		if n := strings.Count(log.String(), "cannot write the file from which rdma-spec reads the policy in force"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log)
		}
		must.Succeed(t, os.Remove(fill), os.Remove(fill+".again"))
		time.Sleep(again)
		synctest.Wait()
		expect(t, "once there is room", root, "a file")
	})
}
