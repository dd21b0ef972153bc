// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// follow follows a file until the test ends. The memlock that came last is that of its policy, or "bad" for an error.
func follow(t *testing.T, file string) (last *atomic.Value, again chan<- os.Signal) {
	t.Helper()
	last = &atomic.Value{}
	signals := make(chan os.Signal, 1)
	await.Beside(t, func(ctx context.Context) {
		(&File{Path: file}).Follow(ctx, signals, func(p *Policy, err error) {
			if err != nil {
				last.Store("bad")
				return
			}
			last.Store(string(p.Config().Memlock))
		})
	})
	return last, signals
}

func awaitLast(t *testing.T, last *atomic.Value, want string) {
	t.Helper()
	await.That(t, await.Timeout, want, func() bool { return last.Load() == want })
}

// Whatever a file becomes, that is an error, and it is a policy once it is good again.
func TestFollowsABadFile(t *testing.T) {
	file := filepath.Join(scratch.Dir(t), "config.yaml")
	write := func(text string) func() error { return func() error { return os.WriteFile(file, []byte(text), 0o644) } }
	scratch.File(t, file, "memlock: 1Gi", 0o644)
	last, _ := follow(t, file)
	awaitLast(t, last, "1Gi")
	for i, spoil := range []func() error{
		write("\x00garbage: ["), write(""), write("memlok: 1Gi"),
		func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) },
		func() error { return os.Remove(file) },
	} {
		must.Succeed(t, spoil())
		awaitLast(t, last, "bad")
		_ = os.RemoveAll(file)
		good := fmt.Sprintf("%dGi", i+2)
		scratch.File(t, file, "memlock: "+good, 0o644)
		awaitLast(t, last, good)
	}
}

// A file that is written in two steps is read after the second one.
func TestFollowsACompleteFile(t *testing.T) {
	file := filepath.Join(scratch.Dir(t), "config.yaml")
	last, _ := follow(t, file)
	awaitLast(t, last, "bad") // the file does not exist
	quick := 0
	for round := 1; quick < 5 && round <= 100; round++ {
		good := fmt.Sprintf("%dGi", round)
		scratch.File(t, file, "memlock: "+good, 0o644)
		awaitLast(t, last, good)
		begin := time.Now()
		scratch.File(t, file, "memlock: ", 0o644)
		time.Sleep(settle / 5)
		half := last.Load()
		scratch.File(t, file, "memlock: "+good, 0o644)
		if time.Since(begin) > settle/2 { // on a busy machine, the file was incomplete for too long
			continue
		}
		quick++
		if half != good {
			t.Fatalf("while the file was incomplete, the memlock was %v", half)
		}
	}
	if quick == 0 {
		t.Skip("this machine never wrote a file in time")
	}
}

// A ConfigMap's files are links to a directory's link, which the kubelet swaps.
func TestFollowsAConfigMap(t *testing.T) {
	dir := scratch.Dir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	swap := func(i int) {
		version := at(fmt.Sprintf("..version%d", i))
		scratch.File(t, filepath.Join(version, "config.yaml"), fmt.Sprintf("memlock: %dMi", i), 0o644)
		must.Succeed(t, os.Symlink(version, at("..tmp")), os.Rename(at("..tmp"), at("..data")),
			os.RemoveAll(at(fmt.Sprintf("..version%d", i-1))))
	}
	swap(1)
	must.Succeed(t, os.Symlink("..data/config.yaml", at("config.yaml")))
	last, _ := follow(t, at("config.yaml"))
	awaitLast(t, last, "1Mi")
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		must.Succeed(t, err)
		return len(open)
	}
	before := descriptors()
	const swaps = 1000
	for i := range swaps {
		swap(i + 2)
	}
	awaitLast(t, last, fmt.Sprintf("%dMi", swaps+1))
	await.That(t, await.Timeout, "as many descriptors open as before", func() bool { return descriptors() <= before })
}

// A change behind a link to a file is not seen in the link's directory: a signal has the file read.
func TestFollowsASignal(t *testing.T) {
	elsewhere, file := filepath.Join(scratch.Dir(t), "config.yaml"), filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, elsewhere, "memlock: 1Gi", 0o644)
	must.Succeed(t, os.Symlink(elsewhere, file))
	last, again := follow(t, file)
	awaitLast(t, last, "1Gi")
	scratch.File(t, elsewhere, "memlock: 2Gi", 0o644)
	again <- os.Interrupt
	awaitLast(t, last, "2Gi")
}
