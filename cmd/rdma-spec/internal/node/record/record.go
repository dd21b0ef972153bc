// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record describes the changes that rdma-spec configure has made on a node: the goals, the created files, and
// the additions to other files. The format lets later versions identify these changes. The package changes no files,
// and does not interpret the values.
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

// Dir is the directory of the record on a node.
const Dir = "var/lib/rdma-spec/configure"

// format is the version of the record's format. Read rejects an unknown format, because the record describes how to
// restore files.
const format = 1

// Record contains the changes on a node. In memory, paths are under the node's root, with links resolved under the
// root. In the file, paths are those on the node itself, so that a copy of a node can be read.
type Record struct {
	Format int     `json:"format"`
	Goals  []Goal  `json:"goals"`
	Files  []Entry `json:"files"`
	// Dirs are the directories that were created for the files, with the innermost first.
	Dirs []string `json:"directories,omitempty"`

	Root string `json:"-"` // the node's root
}

// Goal is the requested goal of a feature. Package goal defines its meaning for a daemon.
type Goal struct {
	Feature string            `json:"feature"`           // such as nri, or handler rdma
	Asked   map[string]string `json:"asked,omitempty"`   // the flags, such as like: runc
	Config  string            `json:"config,omitempty"`  // the daemon's configuration, on the node
	Version string            `json:"version,omitempty"` // the daemon's version
	Time    time.Time         `json:"time"`
}

// Entry is a changed file.
type Entry struct {
	Path    string `json:"path"`
	Feature string `json:"feature,omitempty"` // set if the whole file belongs to a feature
	Parts   []Part `json:"parts,omitempty"`   // set if other programs also write the file
	Made    bool   `json:"made,omitempty"`    // the file did not exist before
	// If the whole file belongs to a feature, Backup is the path of the original content, and Written contains the SHA-256
	// of the written contents. During a run, the file can still have the content from the previous run.
	Backup   string   `json:"backup,omitempty"`
	Written  []string `json:"written,omitempty"`
	Mode     uint32   `json:"mode"`
	Editable bool     `json:"editable,omitempty"`
}

// Features returns the features for which a file was changed.
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

// Read reads the record of the node under a root. If the record does not exist, the result is empty.
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
		return nil, fmt.Errorf("%s has format %d, but this version of rdma-spec supports format %d: use the version "+
			"that wrote the file", r.File(), r.Format, format)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.File(), err)
	}
	r.changePaths(func(path string) string { return files.Below(root, path) })
	return r, nil
}

// File returns the record's own file.
func (r *Record) File() string { return files.Below(r.Root, Dir+"/changes.json") }

// Text returns the content to write to the record's file.
func (r *Record) Text() ([]byte, error) {
	kept := Record{Format: format, Goals: r.Goals, Files: slices.Clone(r.Files), Dirs: slices.Clone(r.Dirs)}
	kept.changePaths(func(path string) string { return lasting(r.Root, files.OnNode(r.Root, path)) })
	text, err := json.MarshalIndent(kept, "", "  ")
	return append(text, '\n'), err
}

// changePaths changes the paths of a record, and converts values to the types of TOML.
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

// plain converts a value to the types of TOML. Integers become int64.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		number, _ := v.Float64() // always a number
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

// lasting returns a file's path that stays valid when snapd copies a snap's directory for a new revision.
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

// Goal returns the goal of a feature, and whether the record contains the goal.
func (r *Record) Goal(feature string) (Goal, bool) {
	i := slices.IndexFunc(r.Goals, func(g Goal) bool { return g.Feature == feature })
	if i < 0 {
		return Goal{}, false
	}
	return r.Goals[i], true
}

// Features returns the recorded features, with the last one first. A recorded feature has changed files, or found all
// files as required.
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

// Paths returns the files that were changed for a feature.
func (r *Record) Paths(feature string) (paths []string) {
	for _, e := range r.Files {
		if slices.Contains(e.Features(), feature) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// Sum returns the hash of a content; "" for a missing file.
func Sum(content []byte) string {
	if content == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}
