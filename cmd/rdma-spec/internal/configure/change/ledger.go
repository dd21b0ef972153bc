// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// Ledger is the record of a node, and changes files according to the record. Only one process at a time can open it for
// writing.
//
// A change is recorded before the file is replaced, and a reversal removes only the parts of the change that the file
// contains. After a power failure or a kill, the record is therefore correct, whether or not the file was replaced.
type Ledger struct {
	*record.Record
	lock *os.File                                                       // nil if the ledger is open for reading
	put  func(path string, old, content []byte, mode fs.FileMode) error // tests make it fail
}

// Read opens the ledger of the node below a root for reading.
func Read(root string) (*Ledger, error) {
	r, err := record.Read(root)
	return &Ledger{Record: r, put: atomicfile.Change}, err
}

// Open opens the ledger of the node below a root for writing. If another process has the ledger open, Open fails
// immediately. The caller must close the ledger.
func Open(root string) (*Ledger, error) {
	dir := files.Below(root, record.Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create %s: %w", dir, files.Cause(err))
	}
	name := filepath.Join(dir, "lock")
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", name, files.Cause(err))
	}
	if err := syscall.Flock(int(lock.Fd()),
		syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // a file descriptor
		holder := make([]byte, 20)
		n, _ := lock.Read(holder) // if this fails, the message omits the PID
		_ = lock.Close()          // nothing was written
		return nil, fmt.Errorf("another rdma-spec configure process is running (PID %s): wait until it exits, and rerun the "+
			"command",
			strings.TrimSpace(string(holder[:n])))
	}
	l, err := Read(root)
	if err == nil {
		l.sweep()
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		_ = lock.Close() // the error says more
		return nil, err
	}
	l.lock = lock
	return l, nil
}

// Close closes the ledger, so that other processes can open it.
func (l *Ledger) Close() {
	if l.lock != nil {
		_ = l.lock.Close() // this also releases the lock
	}
}

// save writes the record.
func (l *Ledger) save() error {
	text, err := l.Text()
	if err != nil {
		return err
	}
	return atomicfile.Write(l.File(), text, 0o600)
}

// sweep removes the temporary files of a run that was killed.
func (l *Ledger) sweep() {
	atomicfile.Sweep(l.File())
	for _, e := range l.Files {
		atomicfile.Sweep(e.Path)
	}
}

// missingDirs returns the directories that must be created for a file, starting with the outermost directory.
func missingDirs(path string) (missing []string) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			slices.Reverse(missing)
			return missing
		}
		missing = append(missing, dir)
	}
}
