// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/test/testing/churn"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Only regular files and directories are opened, even if something else replaces them while they are read: a
// container's author can replace any file in the container with a device, and root would open that device on the node.
func TestOpensNothingElse(t *testing.T) {
	root := scratch.Dir(t)
	at := func(name string) string { return filepath.Join(root, name) }
	must.Succeed(t, os.Mkdir(at("directory"), 0o755), os.WriteFile(at("file"), []byte("text"), 0o644),
		unix.Mkfifo(at("pipe"), 0o600))
	pipe, err := os.OpenFile(at("pipe"), os.O_RDWR, 0) // opening it does not block
	must.Succeed(t, err)
	defer pipe.Close() //nolint:errcheck // nothing was written
	opened, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(opened, at("pipe"), unix.IN_OPEN)
	}
	must.Succeed(t, err)
	defer unix.Close(opened) //nolint:errcheck // it was only read
	tree, err := files.Open(root)
	must.Succeed(t, err)
	defer tree.Close() //nolint:errcheck // it was only read
	took := func() bool {
		n, err := unix.Read(opened, make([]byte, 4096))
		return n > 0 || !errors.Is(err, unix.EAGAIN)
	}
	for name, read := range map[string]func(name string) error{
		"Read":  func(name string) error { _, err := tree.Read(name, 100); return err },
		"List":  func(name string) error { _, err := tree.List(name, 100); return err },
		"Match": func(name string) error { _, err := tree.Match(name + "/*"); return err },
		"Open": func(name string) error {
			file, err := tree.Open(name)
			if err == nil {
				err = file.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := read("pipe"); err == nil && name != "Match" || took() {
				t.Errorf("a FIFO: error %v, or it was opened", err)
			}
			for _, kind := range []string{"file", "directory"} {
				swap := func(context.Context, int) error {
					return unix.Renameat2(unix.AT_FDCWD, at(kind), unix.AT_FDCWD, at("pipe"), unix.RENAME_EXCHANGE)
				}
				swaps := churn.Start(t, swap)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range 2000 {
						_ = read(kind) // the result depends on the moment
					}
				}()
				select {
				case <-done:
				case <-time.After(time.Minute):
					t.Fatalf("a FIFO is read in place of a %s", kind)
				}
				swaps.End()
				if swaps.Count()%2 == 1 {
					must.Succeed(t, swap(t.Context(), 0))
				}
				if took() {
					t.Errorf("a FIFO was opened in place of a %s", kind)
				}
			}
		})
	}
}
