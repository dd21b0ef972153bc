// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// folder is where the ledger is on a node.
const folder = "var/lib/rdma-spec/configure"

// Ledger is the record of changes of a node, in a folder of its own: changes.json, and the contents of files by their
// hashes. One process at a time has it open for writing. The record has the paths that the files have on the node
// itself, so a copy of a node can be read.
//
// A change is recorded before the file is replaced. So after a power cut or a kill, a file has the content before or
// after the last change that is recorded for it, and both are kept until it is made. Then there is one change of each
// file and feature, and a program, which is large and not to be looked at, has only its hash.
type Ledger struct {
	root  string   // of the node
	lock  *os.File // nil: for reading
	steps []step
	put   func(path string, old, content []byte, mode fs.FileMode) error // tests let it fail
}

// step is one change of one file.
type step struct {
	Feature string    `json:"feature"` // on whose behalf, such as nri
	Path    string    `json:"path"`    // below the ledger's root; in the record, on the node
	Time    time.Time `json:"time"`
	Before  string    `json:"before,omitempty"` // SHA-256 of the content, empty where there was no file
	After   string    `json:"after"`
	Mode    uint32    `json:"mode"`
	Folders []string  `json:"folders,omitempty"` // that were made for the file, the outermost first; as Path
	Serves  string    `json:"serves,omitempty"`  // as in File
	Base    string    `json:"base,omitempty"`    // SHA-256 of that of File
	// Editable is as in File.
	Editable bool `json:"editable,omitempty"`
}

// Open opens the ledger of the node below a root. It fails at once where another process has it open. The caller closes
// it.
func Open(root string) (*Ledger, error) {
	dir := files.Below(root, folder)
	if err := os.MkdirAll(filepath.Join(dir, "contents"), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make %s: %w", dir, files.Cause(err))
	}
	name := filepath.Join(dir, "lock")
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", name, files.Cause(err))
	}
	if err := syscall.Flock(int(lock.Fd()),
		syscall.LOCK_EX|syscall.LOCK_NB); err != nil { //nolint:gosec // a file descriptor
		holder := make([]byte, 20)
		n, _ := lock.Read(holder) // unknown: the message does without
		_ = lock.Close()          // nothing was written
		return nil, fmt.Errorf("another rdma-spec configure is running (PID %s): wait for it, and try again",
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

// Read reads the ledger of the node below a root, to look at it. There is nothing in a ledger that does not exist.
func Read(root string) (*Ledger, error) {
	l := &Ledger{root: root, put: atomicfile.Change}
	text, err := files.Content(l.record())
	if err != nil || text == nil {
		return l, err
	}
	var kept struct{ Changes []step }
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, fmt.Errorf("%s: %w", l.record(), err)
	}
	for _, s := range kept.Changes {
		l.steps = append(l.steps, s.at(func(path string) string { return files.Below(root, path) }))
	}
	return l, nil
}

// Close lets others open the ledger.
func (l *Ledger) Close() {
	if l.lock != nil {
		_ = l.lock.Close() // the lock goes with it
	}
}

// at returns a step whose paths are elsewhere.
func (s step) at(place func(path string) string) step {
	s.Path = place(s.Path)
	s.Folders = slices.Clone(s.Folders)
	for i, dir := range s.Folders {
		s.Folders[i] = place(dir)
	}
	if s.Serves != "" {
		s.Serves = place(s.Serves)
	}
	return s
}

func (l *Ledger) record() string { return files.Below(l.root, folder+"/changes.json") }

func (l *Ledger) file(hash string) string { return files.Below(l.root, folder+"/contents/"+hash) }

// Features returns on whose behalf files are changed, the last one first.
func (l *Ledger) Features() []string {
	var all []string
	for _, s := range slices.Backward(l.steps) {
		if !slices.Contains(all, s.Feature) {
			all = append(all, s.Feature)
		}
	}
	return all
}

// save writes the record.
func (l *Ledger) save() error {
	var kept struct {
		Changes []step `json:"changes"`
	}
	for _, s := range l.steps {
		kept.Changes = append(kept.Changes, s.at(func(path string) string { return files.OnNode(l.root, path) }))
	}
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(l.record(), append(text, '\n'), 0o600)
}

// keep keeps a content, and returns its hash, as sum does.
func (l *Ledger) keep(content []byte) (string, error) {
	hash := sum(content)
	if content == nil {
		return "", nil
	}
	if _, err := os.Stat(l.file(hash)); err == nil {
		return hash, nil
	}
	return hash, atomicfile.Write(l.file(hash), content, 0o600)
}

// kept returns a content that was kept, nil for that of no file.
func (l *Ledger) kept(hash string) ([]byte, error) {
	if hash == "" {
		return nil, nil
	}
	content, err := files.Content(l.file(hash))
	if err == nil && sum(content) != hash {
		err = fmt.Errorf("%s is lost or damaged: correct the files by hand, and drop the record with --forget", l.file(hash))
	}
	return content, err
}

// sum returns a content's hash, empty for that of no file.
func sum(content []byte) string {
	if content == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// current returns the hash of a file, empty where there is none.
func current(path string) (string, error) {
	content, err := files.Content(path)
	return sum(content), err
}

// needs reports whether a change needs a content: to put it back, or to compare it with what somebody else has made of
// it.
func (s step) needs(hash string) bool {
	program := s.Mode&0o111 != 0
	return s.Before == hash || s.Base == hash || s.After == hash && !program
}

// sweep removes what a run left that was killed.
func (l *Ledger) sweep() {
	atomicfile.Sweep(l.record())
	for _, s := range l.steps {
		atomicfile.Sweep(s.Path)
	}
	l.prune()
}

// prune removes contents that no change needs.
func (l *Ledger) prune() {
	all, err := os.ReadDir(filepath.Dir(l.file("any")))
	if err != nil {
		return // they do no harm
	}
	for _, entry := range all {
		if !slices.ContainsFunc(l.steps, func(s step) bool { return s.needs(entry.Name()) }) {
			_ = os.Remove(l.file(entry.Name())) // it does no harm
		}
	}
}

// missingFolders returns the folders that have to be made for a file, the outermost first.
func missingFolders(path string) (missing []string) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			slices.Reverse(missing)
			return missing
		}
		missing = append(missing, dir)
	}
}

// Files returns the files that are changed on behalf of a feature.
func (l *Ledger) Files(feature string) (paths []string) {
	for _, s := range l.steps {
		if s.Feature == feature {
			paths = append(paths, s.Path)
		}
	}
	return paths
}
