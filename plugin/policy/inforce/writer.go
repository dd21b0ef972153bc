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

// Writer writes the policy in force to a file. Only a registered plugin uses a Writer. A validator has a nil Writer,
// which writes nothing. Only one goroutine at a time can use a Writer.
//
// If two plugins are registered, for example during an update, the file belongs to the plugin that registered last. A
// writer that cannot replace its file removes the file. Other programs need not remove the file, because readers reject
// the file after its writer exits.
type Writer struct {
	// Root is the directory that contains the directory run of the node. On the node itself, Root is "/".
	Root string
	// Version is the version of the writer, for programs that read the file.
	Version string
	// Deployment is the deployment of the writer, or "" if the writer runs directly on the node.
	Deployment string

	file *os.File // the locked file that was written last; nil before the first write
}

// Write writes the policy and its source, even if another plugin wrote the file. Call Write after the plugin registers.
func (w *Writer) Write(p *policy.Policy, source string) error { return w.put(p, source, false) }

// Keep writes the policy if the file does not contain it. If another running plugin wrote the file, Keep leaves the
// file unchanged, because the other plugin registered later. Call Keep when the policy changes, and periodically.
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
	if err != nil || keep && w.leavesAlone(text) {
		return err
	}
	if err := w.replace(text); err != nil {
		w.withdraw()
		return err
	}
	return nil
}

// withdraw removes the file that this process wrote, because another policy is in force.
func (w *Writer) withdraw() {
	mine, err := w.file.Stat()
	if err != nil {
		return // no file was written
	}
	if its, err := os.Lstat(w.path()); err == nil && os.SameFile(mine, its) {
		_ = os.Remove(w.path()) // if the removal fails, the file stays, but is no longer locked
	}
	_ = w.file.Close()
}

// leavesAlone reports whether Keep leaves the file unchanged.
func (w *Writer) leavesAlone(text []byte) bool {
	there, err := openTrusted(w.path())
	if err != nil {
		return false
	}
	defer func() { _ = there.Close() }() // opened for reading
	if locked, err := isLocked(there); err != nil || !locked {
		return false
	}
	mine, _ := w.file.Stat() // if this writer wrote no file, mine is nil, and the file belongs to another writer
	its, _ := there.Stat()
	if !os.SameFile(mine, its) {
		return true
	}
	old, err := io.ReadAll(there)
	return err == nil && bytes.Equal(old, text)
}

// Close releases the lock. The end of the process also releases the lock. After the release, the policy in the file is
// no longer in force.
func (w *Writer) Close() {
	if w != nil {
		_ = w.file.Close() // the content is complete; closing releases the lock
	}
}

func (w *Writer) path() string { return filepath.Join(w.Root, File) }

// replace replaces the file with a new file, which is locked before it becomes visible. If the directory does not
// exist, replace creates the directory. Readers reject the directory if users other than root can write to it.
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
	// Until the file is locked, only root can open the file, because another user's read lock would prevent the write
	// lock.
	err = atomicfile.Own(w.path(), text, 0o644, func(file *os.File) (err error) {
		held, err = hold(file)
		return err
	})
	if err != nil {
		_ = held.Close() // the file was not published
		return err
	}
	_ = w.file.Close() // the previous file was replaced
	w.file = held
	return nil
}

// A writer holds a write lock on its file as long as the writer runs. When the process ends, the kernel releases the
// lock. A process ID is not sufficient, because the plugin's PID in its pod differs from the plugin's PID on the node.
// The lock belongs to an open file description. Only users who can write to the file can hold a write lock.

func lock(file *os.File) error {
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return fmt.Errorf("cannot lock %s: %w", file.Name(), err)
	}
	return nil
}

// hold locks a file, and returns a duplicate that keeps the lock when the original file is closed.
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

// isLocked reports whether another open file description holds the write lock on a file.
func isLocked(file *os.File) (bool, error) {
	asked := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &asked); err != nil {
		return false, fmt.Errorf("cannot determine whether the process that wrote %s is running: %w", file.Name(), err)
	}
	return asked.Type == unix.F_WRLCK, nil
}
