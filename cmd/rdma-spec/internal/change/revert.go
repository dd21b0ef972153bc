// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Changed is the error where a change cannot be taken back, since somebody else has changed the file later.
type Changed struct {
	Feature, Path string
	Diff          string // what others changed
	Cause         error  // why the feature's values cannot be taken out; nil where the file is the feature's as a whole
}

// Error implements error.
func (c *Changed) Error() string {
	why := ""
	if c.Cause != nil {
		why = " (" + c.Cause.Error() + ")"
	}
	return fmt.Sprintf("%s was changed since rdma-spec configure %s wrote it, and stays as it is%s: take this difference "+
		"back, or remove the lines of rdma-spec by hand and forget them with --forget", c.Path, c.Feature, why)
}

// Reversal is what a Revert does: the files, and what they become.
type Reversal struct {
	steps []step // one for each file, in the order in which they happen
	kept  record // what the ledger has afterwards
	empty bool
}

// Diff returns the unified diff of what the files are and what they become.
func (r *Reversal) Diff() string {
	var all strings.Builder
	for _, s := range r.steps {
		if !files.Same(s.from, s.to) {
			all.WriteString(diff(s.path, s.from, s.to))
		}
	}
	return all.String()
}

// Contents returns what the files become, by their paths; nil for one that is removed.
func (r *Reversal) Contents() map[string][]byte {
	all := map[string][]byte{}
	for _, s := range r.steps {
		all[s.path] = s.to
	}
	return all
}

// RemoveBefore adds that a file is removed right before another one that is changed, since it names that one.
func (r *Reversal) RemoveBefore(other, path string) error {
	now, err := files.Content(path)
	if err != nil || now == nil {
		return err
	}
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.path == other })
	r.steps = slices.Insert(r.steps, i, step{path: path, from: now, mode: 0o644})
	return nil
}

// Leave leaves a file as it is, and its record. The rest of its feature goes.
func (r *Reversal) Leave(l *Ledger, path string) {
	r.steps = slices.DeleteFunc(r.steps, func(s step) bool { return s.path == path })
	for _, e := range l.Files {
		if e.Path == path {
			r.kept.Files = append(r.kept.Files, e)
		}
	}
}

// Empty reports whether there is nothing to restore, and nothing to drop from the record.
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

// Reversal returns what takes back the changes on behalf of features. What others have changed in the files since
// stays. It fails with Changed where they have changed a file that is a feature's as a whole, or that is no TOML.
func (l *Ledger) Reversal(features ...string) (Reversal, error) { return l.reversal(false, features) }

// ReversalButTables is Reversal but for tables that are no feature's own: they become those of others.
func (l *Ledger) ReversalButTables(features ...string) (Reversal, error) {
	return l.reversal(true, features)
}

func (l *Ledger) reversal(butTables bool, features []string) (r Reversal, err error) {
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	r.empty = !slices.ContainsFunc(l.Features(), gone)
	var dirs []string
	for _, e := range slices.Backward(l.Files) {
		if !slices.ContainsFunc(e.features(), gone) {
			r.kept.Files = append(r.kept.Files, e)
			continue
		}
		now, err := files.Content(e.Path)
		if err != nil {
			return r, err
		}
		of := e
		if butTables {
			of.Parts = slices.DeleteFunc(slices.Clone(e.Parts), Part.companion)
		}
		content, rest, err := l.without(of, now, gone)
		if err != nil {
			return r, err
		}
		if !files.Same(now, content) {
			r.steps = append(r.steps, e.step(now, content))
		} else if now == nil && len(e.Dirs) > 0 {
			r.steps = append(r.steps, e.step(nil, nil)) // a run was killed before it removed them
		}
		if len(rest.features()) > 0 {
			r.kept.Files = append(r.kept.Files, rest)
		} else {
			dirs = append(dirs, e.Dirs...)
		}
	}
	slices.Reverse(r.kept.Files)
	inherit(r.kept.Files, dirs)
	r.kept.Goals = slices.DeleteFunc(slices.Clone(l.Goals), func(g Goal) bool { return gone(g.Feature) })
	return r, nil
}

// without returns what a file becomes without features, and its entry with those that are left.
func (l *Ledger) without(e entry, now []byte, gone func(feature string) bool) ([]byte, entry, error) {
	e.Parts = handedOver(e.Parts, gone)
	rest := e
	rest.Feature = ""
	rest.Parts = slices.DeleteFunc(slices.Clone(e.Parts), func(p Part) bool { return gone(p.Feature) })
	changed := &Changed{Path: e.Path, Feature: e.features()[slices.IndexFunc(e.features(), gone)]}
	if e.Feature == "" {
		content, err := e.withoutParts(now, gone, rest.Parts)
		if err == nil {
			return content, rest, nil
		}
		changed.Cause = err
		return nil, e, changed
	}
	original, err := l.kept(e.Original)
	switch {
	case err != nil:
		return nil, e, err
	case slices.Contains(e.Written, sum(now)):
		return original, rest, nil
	case now == nil, files.Same(now, original), e.Editable:
		return now, rest, nil
	}
	for _, hash := range e.Written { // of a program only the hash is known
		written, _ := l.kept(hash)
		changed.Diff = diff(e.Path, written, now)
	}
	return nil, e, changed
}

// handedOver returns parts of which tables that are no feature's own are those of a feature that stays beside them.
func handedOver(parts []Part, gone func(feature string) bool) []Part {
	parts = slices.Clone(parts)
	for i, p := range parts {
		beside := func(other Part) bool {
			return other.Own && !gone(other.Feature) && slices.Equal(other.Path[:len(other.Path)-1], p.Path[:len(p.Path)-1])
		}
		if heir := slices.IndexFunc(parts, beside); heir >= 0 && p.companion() {
			parts[i].Feature = parts[heir].Feature
		}
	}
	return parts
}

// withoutParts returns what a file that others write becomes without features, but for what others of ours share.
func (e entry) withoutParts(now []byte, gone func(feature string) bool, rest []Part) ([]byte, error) {
	var going []Part
	for _, p := range e.Parts {
		if gone(p.Feature) && !slices.ContainsFunc(rest, p.sameAs) {
			going = append(going, p)
		}
	}
	if now == nil {
		return nil, nil
	}
	content, err := without(now, going)
	if err != nil || len(rest) > 0 {
		return content, err
	}
	content = tomledit.WithoutMarks(content)
	if e.Made { // what is left in the block is others'
		content = orNone(content)
	}
	return content, nil
}

// Without returns what files that a containerd reads would be without features, by their paths; of all features where
// none is named. Those that are a feature's as a whole would not be there.
func (l *Ledger) Without(features ...string) (map[string][]byte, error) {
	gone := func(feature string) bool { return len(features) == 0 || slices.Contains(features, feature) }
	all := map[string][]byte{}
	for _, e := range l.Files {
		if !slices.ContainsFunc(e.features(), gone) {
			continue
		}
		if e.Feature != "" {
			if filepath.Ext(e.Path) == ".toml" {
				all[e.Path] = nil
			}
			continue
		}
		now, err := files.Content(e.Path)
		if err == nil {
			all[e.Path], _, err = l.without(e, now, gone)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Revert carries out a reversal: every file becomes what it was before the first change, the last one first. Where
// something fails, also the check that follows, the files become again what they were.
func (l *Ledger) Revert(back Reversal, check func() error) error {
	if _, err := l.carryOut(back.steps, check); err != nil {
		return err
	}
	return l.replace(back.kept)
}

// Forget drops the record of the changes on behalf of features, and leaves the files as they are. It returns those.
func (l *Ledger) Forget(features ...string) (paths []string, err error) {
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	kept := record{Goals: slices.DeleteFunc(slices.Clone(l.Goals), func(g Goal) bool { return gone(g.Feature) })}
	for _, e := range l.Files {
		if slices.ContainsFunc(e.features(), gone) {
			paths = append(paths, e.Path)
			if gone(e.Feature) {
				e.Feature = ""
			}
			e.Parts = slices.DeleteFunc(slices.Clone(e.Parts), func(p Part) bool { return gone(p.Feature) })
			if len(e.features()) == 0 {
				continue
			}
		}
		kept.Files = append(kept.Files, e)
	}
	return paths, l.replace(kept)
}

// replace replaces the record.
func (l *Ledger) replace(kept record) error {
	l.record = kept
	err := l.save()
	if err == nil {
		l.prune()
	}
	return err
}
