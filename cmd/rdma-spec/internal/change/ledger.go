// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"bytes"
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

	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// directory is where the ledger is on a node.
const dir = "var/lib/rdma-spec/configure"

// Ledger is the record of changes of a node, in a directory of its own: changes.json, and the contents of files by
// their hashes. One process at a time has it open for writing. The record has the paths that the files have on the node
// itself, so a copy of a node can be read.
//
// A change is recorded before the file is replaced, and what is taken back is what is there of it. So after a power cut
// or a kill, the record is right whether the file has the content before or after the change.
type Ledger struct {
	root string   // of the node
	lock *os.File // nil: for reading
	record
	put func(path string, old, content []byte, mode fs.FileMode) error // tests let it fail
}

// format is that of the record. One that is not understood is refused, since it says how to restore files.
const format = 1

type record struct {
	Format int     `json:"format"`
	Goals  []Goal  `json:"goals"`
	Files  []entry `json:"files"`
}

// Goal is what a feature was asked for. What that means for a daemon, its package knows.
type Goal struct {
	Feature string            `json:"feature"`           // such as nri, or handler rdma
	Asked   map[string]string `json:"asked,omitempty"`   // with which flags, such as like: runc
	Daemon  string            `json:"daemon,omitempty"`  // such as containerd, or k3s
	Config  string            `json:"config,omitempty"`  // the daemon's configuration, on the node
	Version string            `json:"version,omitempty"` // of the daemon
	Time    time.Time         `json:"time"`
}

// entry is a file that is changed.
type entry struct {
	Path    string `json:"path"`              // below the ledger's root; in the record, on the node
	Feature string `json:"feature,omitempty"` // of a file that is a feature's as a whole
	Parts   []Part `json:"parts,omitempty"`   // of a file that others write, too
	Made    bool   `json:"made,omitempty"`    // the file was not there before
	// Of a file that is a feature's as a whole: the SHA-256 of what was there before, empty where nothing was, and of
	// what was written. Until a run has ended, the file can have what the one before wrote.
	Original string   `json:"original,omitempty"`
	Written  []string `json:"written,omitempty"`
	Mode     uint32   `json:"mode"`
	Dirs     []string `json:"directories,omitempty"` // that were made for the file, the outermost first; as Path
	Editable bool     `json:"editable,omitempty"`
}

// features returns on whose behalf a file is changed.
func (e entry) features() (all []string) {
	if e.Feature != "" {
		all = append(all, e.Feature)
	}
	for _, p := range e.Parts {
		all = append(all, p.Feature)
	}
	return all
}

// Open opens the ledger of the node below a root. It fails at once where another process has it open. The caller closes
// it.
func Open(root string) (*Ledger, error) {
	dir := files.Below(root, dir)
	if err := os.MkdirAll(filepath.Join(dir, "contents"), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make %s: %w", dir, files.Cause(err))
	}
	name := filepath.Join(dir, "lock")
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", name, files.Cause(err))
	}
	if err := syscall.Flock(int(lock.Fd()),
		syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // a file descriptor
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
	text, err := files.Content(l.file())
	if err != nil || text == nil {
		return l, err
	}
	from := json.NewDecoder(bytes.NewReader(text))
	from.UseNumber()
	err = from.Decode(&l.record)
	switch {
	case l.Format != format && (err == nil || l.Format != 0):
		return nil, fmt.Errorf("%s has format %d, and this rdma-spec understands format %d: use the version that wrote it",
			l.file(), l.Format, format)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", l.file(), err)
	}
	for i := range l.Files {
		l.Files[i] = l.Files[i].at(func(path string) string { return files.Below(root, path) })
	}
	return l, nil
}

// Close lets others open the ledger.
func (l *Ledger) Close() {
	if l.lock != nil {
		_ = l.lock.Close() // the lock goes with it
	}
}

// at returns an entry whose paths are elsewhere.
func (e entry) at(place func(path string) string) entry {
	e.Path = place(e.Path)
	e.Dirs = slices.Clone(e.Dirs)
	for i, dir := range e.Dirs {
		e.Dirs[i] = place(dir)
	}
	e.Parts = slices.Clone(e.Parts)
	for i := range e.Parts {
		e.Parts[i].Written = plain(e.Parts[i].Written)
	}
	return e
}

// plain returns a value as TOML has it: whole numbers are an int64.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		number, _ := v.Float64() // it is a number
		return number
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = plain(v[key])
		}
	}
	return value
}

func (l *Ledger) file() string { return files.Below(l.root, dir+"/changes.json") }

func (l *Ledger) content(hash string) string { return files.Below(l.root, dir+"/contents/"+hash) }

// Goal returns the goal of a feature, and whether it is recorded.
func (l *Ledger) Goal(feature string) (Goal, bool) {
	i := slices.IndexFunc(l.Goals, func(g Goal) bool { return g.Feature == feature })
	if i < 0 {
		return Goal{}, false
	}
	return l.Goals[i], true
}

// Features returns on whose behalf files are changed, or are as they were to be, the last one first.
func (l *Ledger) Features() (all []string) {
	add := func(features ...string) {
		for _, feature := range slices.Backward(features) {
			if !slices.Contains(all, feature) {
				all = append(all, feature)
			}
		}
	}
	for _, e := range slices.Backward(l.Files) {
		add(e.features()...)
	}
	for _, g := range slices.Backward(l.Goals) {
		add(g.Feature)
	}
	return all
}

// save writes the record.
func (l *Ledger) save() error {
	kept := record{Format: format, Goals: l.Goals}
	for _, e := range l.Files {
		kept.Files = append(kept.Files, e.at(func(path string) string { return lasting(l.root, files.OnNode(l.root, path)) }))
	}
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(l.file(), append(text, '\n'), 0o600)
}

// lasting returns the name of a file of a snap that it keeps when snapd copies its directory to that of a new revision.
func lasting(root, name string) string {
	parts := strings.SplitN(name, "/", 6) // "", var, snap, the snap's name, the revision, the rest
	if len(parts) < 6 || !strings.HasPrefix(name, "/var/snap/") {
		return name
	}
	parts[4] = "current"
	if current := strings.Join(parts, "/"); files.Below(root, current) == files.Below(root, name) {
		return current
	}
	return name
}

// keep keeps a content by its hash.
func (l *Ledger) keep(content []byte) error {
	if content == nil {
		return nil
	}
	file := l.content(sum(content))
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	return atomicfile.Write(file, content, 0o600)
}

// kept returns a content that was kept, nil for that of no file.
func (l *Ledger) kept(hash string) ([]byte, error) {
	if hash == "" {
		return nil, nil
	}
	content, err := files.Content(l.content(hash))
	if err == nil && sum(content) != hash {
		err = fmt.Errorf("%s is lost or damaged: correct the files by hand, and drop the record with --forget",
			l.content(hash))
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

// needs reports whether an entry needs a content: to restore it, or to compare it with what somebody else has made of
// it. A program is large, and not to be looked at.
func (e entry) needs(hash string) bool {
	program := e.Mode&0o111 != 0
	return e.Original == hash || slices.Contains(e.Written, hash) && !program
}

// sweep removes what a run left that was killed.
func (l *Ledger) sweep() {
	atomicfile.Sweep(l.file())
	for _, e := range l.Files {
		atomicfile.Sweep(e.Path)
	}
	l.prune()
}

// prune removes contents that no entry needs.
func (l *Ledger) prune() {
	all, err := os.ReadDir(filepath.Dir(l.content("any")))
	if err != nil {
		return // they do no harm
	}
	for _, found := range all {
		if !slices.ContainsFunc(l.Files, func(e entry) bool { return e.needs(found.Name()) }) {
			_ = os.Remove(l.content(found.Name())) // it does no harm
		}
	}
}

// missingDirs returns the directories that have to be made for a file, the outermost first.
func missingDirs(path string) (missing []string) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			slices.Reverse(missing)
			return missing
		}
		missing = append(missing, dir)
	}
}

// Paths returns the files that are changed on behalf of a feature.
func (l *Ledger) Paths(feature string) (paths []string) {
	for _, e := range l.Files {
		if slices.Contains(e.features(), feature) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}
