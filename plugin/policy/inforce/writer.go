// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// Writer writes the policy in force. Only a registered plugin may use one: a validator has none, and a nil Writer
// writes nothing. It is for one goroutine at a time.
//
// Where two plugins are registered, as during an update, the file is that of the one that registered last. A writer
// that cannot replace its file removes it. Nobody else does: readers refuse it once its writer has ended.
type Writer struct {
	// Root is the directory that has the node's run: "/" on the node itself.
	Root string
	// Version is the writer's own, for whoever reads the file.
	Version string
	// Deployment is what the writer belongs to; "": the node itself.
	Deployment string

	file *os.File // that was written last, and is locked; nil before
}

// Write writes the policy and where it comes from, whoever wrote the file before. Call it when the plugin has
// registered.
func (w *Writer) Write(p *policy.Policy, source string) error { return w.put(p, source, false) }

// Keep writes the policy where the file does not have it, unless another plugin that still runs wrote the file: that
// one registered later. Call it when the policy changes, and now and then.
func (w *Writer) Keep(p *policy.Policy, source string) error { return w.put(p, source, true) }

func (w *Writer) put(p *policy.Policy, source string, keep bool) error {
	if w == nil {
		return nil
	}
	config, err := json.Marshal(p.Config())
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(document{APIVersion: apiVersion, Source: source, PID: os.Getpid(),
		Version: w.Version, Deployment: w.Deployment, Policy: config})
	if err != nil || keep && w.stays(text) {
		return err
	}
	if err := w.replace(text); err != nil {
		w.withdraw()
		return err
	}
	return nil
}

// withdraw ends the policy that this process wrote, since another one is in force.
func (w *Writer) withdraw() {
	mine, err := w.file.Stat()
	if err != nil {
		return // it wrote none
	}
	if its, err := os.Lstat(w.path()); err == nil && os.SameFile(mine, its) {
		_ = os.Remove(w.path()) // if it stays, nobody holds its lock
	}
	_ = w.file.Close()
}

// stays reports whether Keep leaves the file alone.
func (w *Writer) stays(text []byte) bool {
	there, err := openTrusted(w.path())
	if err != nil {
		return false
	}
	defer func() { _ = there.Close() }() // opened for reading
	if locked, err := isLocked(there); err != nil || !locked {
		return false
	}
	mine, _ := w.file.Stat() // one that is not there is no other's
	its, _ := there.Stat()
	if !os.SameFile(mine, its) {
		return true
	}
	old, err := io.ReadAll(there)
	return err == nil && bytes.Equal(old, text)
}

// Close ends the Writer as the end of its process does: what it wrote is in force no longer.
func (w *Writer) Close() {
	if w != nil {
		_ = w.file.Close() // it was written, if there is one, and the lock goes with it
	}
}

func (w *Writer) path() string { return filepath.Join(w.Root, File) }

// replace replaces the file by one that is locked already when it appears. Its directory is made where there is none,
// and must be root's alone: readers would not trust it.
func (w *Writer) replace(text []byte) error {
	dir := filepath.Dir(w.path())
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if err := trusted(dir, info); err != nil {
		return err
	}
	var held *os.File
	// Until it is locked, nobody but root can open it: a read lock of somebody else would keep it from being locked.
	err = atomicfile.Own(w.path(), text, 0o644, func(file *os.File) (err error) {
		held, err = hold(file)
		return err
	})
	if err != nil {
		_ = held.Close() // it is of no use, if there is one
		return err
	}
	_ = w.file.Close() // another one is in its place
	w.file = held
	return nil
}

// A writer holds a write lock on the file that it wrote for as long as it lives, and the kernel takes the lock from it
// when it ends, however it ends. A process ID would not do: the plugin's is another one in its pod than on the node.
// The lock is one of an open file description, which only somebody who may write to the file can hold.

func lock(file *os.File) error {
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return fmt.Errorf("cannot lock %s: %w", file.Name(), err)
	}
	return nil
}

// hold locks a file, and returns it as another one that keeps the lock when the first is closed.
func hold(file *os.File) (*os.File, error) {
	if err := lock(file); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot keep %s open: %w", file.Name(), err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// isLocked reports whether another open file holds the write lock of a file.
func isLocked(file *os.File) (bool, error) {
	asked := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &asked); err != nil {
		return false, fmt.Errorf("cannot tell whether the process that wrote %s is running: %w", file.Name(), err)
	}
	return asked.Type == unix.F_WRLCK, nil
}
