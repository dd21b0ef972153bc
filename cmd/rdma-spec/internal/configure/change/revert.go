// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"os"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Reversal is a plan for Revert: the files, and their contents after the reversal.
type Reversal struct {
	steps []step        // one for each file, in the order of execution
	kept  record.Record // the content of the ledger afterward
	empty bool
}

// Diff returns the unified diff between the current contents and the contents after the reversal.
func (r *Reversal) Diff() string {
	var all strings.Builder
	for _, s := range r.steps {
		if !files.Same(s.from, s.to) {
			all.WriteString(diff(s.path, s.from, s.to))
		}
	}
	return all.String()
}

// Contents returns the files' contents after the reversal, by path. The content of a removed file is nil.
func (r *Reversal) Contents() map[string][]byte {
	all := map[string][]byte{}
	for _, s := range r.steps {
		all[s.path] = s.to
	}
	return all
}

// RemoveBefore adds the removal of a file directly before the change of another file, which the removed file names.
func (r *Reversal) RemoveBefore(other, path string) error {
	now, err := files.Content(path)
	if err != nil || now == nil {
		return err
	}
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.path == other })
	r.steps = slices.Insert(r.steps, i, step{path: path, from: now, mode: 0o644})
	return nil
}

// Leave keeps a file unchanged, and keeps the file's record. The rest of the file's feature is reverted.
func (r *Reversal) Leave(l *Ledger, path string) {
	r.steps = slices.DeleteFunc(r.steps, func(s step) bool { return s.path == path })
	for _, e := range l.Files {
		if e.Path == path {
			r.kept.Files = append(r.kept.Files, e)
		}
	}
}

// Empty reports whether the reversal restores no file, and drops no entry from the record.
func (r *Reversal) Empty() bool { return r.empty }

// Paths returns the files that are restored.
func (r *Reversal) Paths() (all []string) {
	for _, s := range r.steps {
		if !files.Same(s.from, s.to) {
			all = append(all, s.path)
		}
	}
	return all
}

// Reversal returns a plan that reverts the changes for features, and keeps later changes of others in the same files.
// If others have changed a file that belongs to a feature as a whole, or that is not TOML, Reversal fails with
// record.Changed.
func (l *Ledger) Reversal(features ...string) (Reversal, error) { return l.reversal(false, features) }

// ReversalButCompanions is like Reversal, but keeps companions, which then belong to others.
func (l *Ledger) ReversalButCompanions(features ...string) (Reversal, error) {
	return l.reversal(true, features)
}

func (l *Ledger) reversal(butCompanions bool, features []string) (r Reversal, err error) {
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	r.empty = !slices.ContainsFunc(l.Features(), gone)
	for _, e := range slices.Backward(l.Files) {
		if !slices.ContainsFunc(e.Features(), gone) {
			r.kept.Files = append(r.kept.Files, e)
			continue
		}
		now, err := files.Content(e.Path)
		if err != nil {
			return r, err
		}
		of := e
		if butCompanions {
			of.Parts = slices.DeleteFunc(slices.Clone(e.Parts), record.Part.Companion)
		}
		content, rest, err := of.Without(now, gone)
		if err != nil {
			return r, err
		}
		if !files.Same(now, content) {
			r.steps = append(r.steps, stepOf(e, now, content))
		}
		if len(rest.Features()) > 0 {
			r.kept.Files = append(r.kept.Files, rest)
		}
	}
	slices.Reverse(r.kept.Files)
	r.kept.Goals = slices.DeleteFunc(slices.Clone(l.Goals), func(g record.Goal) bool { return gone(g.Feature) })
	return r, nil
}

// Revert carries out a reversal: it restores each file to its content before the first change, in reverse order. If a
// step or the check after the steps fails, Revert undoes the reversal.
func (l *Ledger) Revert(back Reversal, check func() error) error {
	if _, err := l.carryOut(back.steps, check); err != nil {
		return err
	}
	return l.keepOnly(back.kept)
}

// keepOnly reduces the record, and removes directories and backups that the record no longer contains.
func (l *Ledger) keepOnly(kept record.Record) error {
	before := l.Files
	l.Files = kept.Files
	l.leaveDirs()
	err := l.replace(kept)
	for _, e := range before {
		isKept := func(other record.Entry) bool { return other.Backup == e.Backup }
		if err == nil && e.Backup != "" && !slices.ContainsFunc(l.Files, isKept) {
			_ = os.Remove(e.Backup) // a remaining backup is useless but harmless
		}
	}
	return err
}

// Forget drops the record of the changes for features, and leaves the files unchanged. It returns the files' paths.
func (l *Ledger) Forget(features ...string) (paths []string, err error) {
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	goals := slices.DeleteFunc(slices.Clone(l.Goals), func(g record.Goal) bool { return gone(g.Feature) })
	kept := record.Record{Goals: goals}
	for _, e := range l.Files {
		if slices.ContainsFunc(e.Features(), gone) {
			paths = append(paths, e.Path)
			if gone(e.Feature) {
				e.Feature = ""
			}
			e.Parts = slices.DeleteFunc(slices.Clone(e.Parts), func(p record.Part) bool { return gone(p.Feature) })
			if len(e.Features()) == 0 {
				continue
			}
		}
		kept.Files = append(kept.Files, e)
	}
	return paths, l.replace(kept)
}

// replace replaces the record.
func (l *Ledger) replace(kept record.Record) error {
	l.Goals = kept.Goals
	l.Files = kept.Files
	return l.save()
}
