// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record describes the changes that rdma-spec configure has made on a node: the goals, the files that it
// created, and its additions to other files, in a form that identifies them later. It changes no files, and does not
// know what the values mean.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Dir is where the record is on a node.
const Dir = "var/lib/rdma-spec/configure"

// format is that of the record. One that is not understood is refused, since it says how to restore files.
const format = 1

// Record is what is recorded of a node. The paths are those below the node's root with links resolved there, and in the
// file those on the node itself: so a copy of a node can be read.
type Record struct {
	Format int     `json:"format"`
	Goals  []Goal  `json:"goals"`
	Files  []Entry `json:"files"`
	// Dirs were made for the files, the innermost first.
	Dirs []string `json:"directories,omitempty"`

	Root string `json:"-"` // of the node
}

// Goal is what a feature was asked for. What that means for a daemon, its package knows.
type Goal struct {
	Feature string            `json:"feature"`           // such as nri, or handler rdma
	Asked   map[string]string `json:"asked,omitempty"`   // with which flags, such as like: runc
	Config  string            `json:"config,omitempty"`  // the daemon's configuration, on the node
	Version string            `json:"version,omitempty"` // of the daemon
	Time    time.Time         `json:"time"`
}

// Entry is a file that is changed.
type Entry struct {
	Path    string `json:"path"`
	Feature string `json:"feature,omitempty"` // of a file that is a feature's as a whole
	Parts   []Part `json:"parts,omitempty"`   // of a file that others write, too
	Made    bool   `json:"made,omitempty"`    // the file was not there before
	// Of a file that is a feature's as a whole: where what was there before is kept, and the SHA-256 of what was written.
	// Until a run has ended, the file can have what the one before wrote.
	Backup   string   `json:"backup,omitempty"`
	Written  []string `json:"written,omitempty"`
	Mode     uint32   `json:"mode"`
	Editable bool     `json:"editable,omitempty"`
}

// Features returns on whose behalf a file is changed.
func (e Entry) Features() (all []string) {
	if e.Feature != "" {
		all = append(all, e.Feature)
	}
	for _, p := range e.Parts {
		if !p.Companion() {
			all = append(all, p.Feature)
		}
	}
	return all
}

// Read reads the record of the node below a root. There is nothing in a record that does not exist.
func Read(root string) (*Record, error) {
	r := &Record{Root: root}
	text, err := files.Content(r.File())
	if err != nil || text == nil {
		return r, err
	}
	from := json.NewDecoder(bytes.NewReader(text))
	from.UseNumber()
	err = from.Decode(r)
	switch {
	case r.Format != format && (err == nil || r.Format != 0):
		return nil, fmt.Errorf("%s has format %d, but this rdma-spec supports format %d: use the version of rdma-spec "+
			"that wrote the file",
			r.File(), r.Format, format)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.File(), err)
	}
	r.changePaths(func(path string) string { return files.Below(root, path) })
	return r, nil
}

// File returns the record's own file.
func (r *Record) File() string { return files.Below(r.Root, Dir+"/changes.json") }

// Text returns what the record's file is to have.
func (r *Record) Text() ([]byte, error) {
	kept := Record{Format: format, Goals: r.Goals, Files: slices.Clone(r.Files), Dirs: slices.Clone(r.Dirs)}
	kept.changePaths(func(path string) string { return lasting(r.Root, files.OnNode(r.Root, path)) })
	text, err := json.MarshalIndent(kept, "", "  ")
	return append(text, '\n'), err
}

// changePaths changes the paths of a record, and makes values what TOML has.
func (r *Record) changePaths(to func(path string) string) {
	for i, dir := range r.Dirs {
		r.Dirs[i] = to(dir)
	}
	for i, e := range r.Files {
		e.Path = to(e.Path)
		if e.Backup != "" {
			e.Backup = to(e.Backup)
		}
		for n, p := range e.Parts {
			e.Parts[n].Written = plain(p.Written)
		}
		r.Files[i] = e
	}
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

// Goal returns the goal of a feature, and whether it is recorded.
func (r *Record) Goal(feature string) (Goal, bool) {
	i := slices.IndexFunc(r.Goals, func(g Goal) bool { return g.Feature == feature })
	if i < 0 {
		return Goal{}, false
	}
	return r.Goals[i], true
}

// Features returns on whose behalf files are changed, or are as they were to be, the last one first.
func (r *Record) Features() (all []string) {
	add := func(features ...string) {
		for _, feature := range slices.Backward(features) {
			if !slices.Contains(all, feature) {
				all = append(all, feature)
			}
		}
	}
	for _, e := range slices.Backward(r.Files) {
		add(e.Features()...)
	}
	for _, g := range slices.Backward(r.Goals) {
		add(g.Feature)
	}
	return all
}

// Paths returns the files that are changed on behalf of a feature.
func (r *Record) Paths(feature string) (paths []string) {
	for _, e := range r.Files {
		if slices.Contains(e.Features(), feature) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// Sum returns a content's hash, empty for that of no file.
func Sum(content []byte) string {
	if content == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}
