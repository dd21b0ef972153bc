// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Changed is the error where a change cannot be taken back, since somebody else has changed the same lines later.
type Changed struct {
	Feature, Path string
	Later         string // the feature that has changed them; "" where it was not rdma-spec
	Diff          string // what others changed
}

// Error implements error.
func (c *Changed) Error() string {
	if c.Later != "" {
		return fmt.Sprintf("%s was changed for %s after it was changed for %s: revert %[2]s first", c.Path, c.Later,
			c.Feature)
	}
	return fmt.Sprintf("%s was changed since rdma-spec configure %s wrote it, and stays as it is: take this difference "+
		"back, or remove the lines of rdma-spec by hand and forget them with --forget", c.Path, c.Feature)
}

// Reversal is what a Revert does: the files, and what they become.
type Reversal struct {
	steps    []step            // one for each file, in the order in which they happen
	contents map[string][]byte // that the ledger needs for them, by their hashes
	kept     []step            // what the ledger has afterwards
	Diff     string
	Left     []error // files that stay as they are, since somebody else has changed the same lines
}

// Contents returns what the files become, by their paths; nil for one that is removed.
func (r *Reversal) Contents() map[string][]byte {
	all := map[string][]byte{}
	for _, s := range r.steps {
		all[s.Path] = r.contents[s.After]
	}
	return all
}

// RemoveBefore adds that a file is removed right before another one that is changed, since it names that one.
func (r *Reversal) RemoveBefore(other, path string) error {
	now, err := files.Content(path)
	if err != nil || now == nil {
		return err
	}
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.Path == other })
	r.steps = slices.Insert(r.steps, i, step{Path: path, Before: sum(now), Mode: 0o644})
	r.contents[sum(now)], r.Diff = now, r.Diff+diff(path, now, nil)
	return nil
}

// Empty reports whether there is nothing to restore.
func (r *Reversal) Empty() bool { return len(r.steps) == 0 }

// Paths returns the files that are restored.
func (r *Reversal) Paths() (all []string) {
	for _, s := range r.steps {
		all = append(all, s.Path)
	}
	return all
}

// Reversal returns what takes back the changes on behalf of features. What others have changed in the files since
// stays. It fails with Changed where they have changed the same lines.
func (l *Ledger) Reversal(features ...string) (r Reversal, err error) {
	r.kept, r.contents = slices.Clone(l.steps), map[string][]byte{}
	gone := l.gone(features)
	now := map[string][]byte{} // what has been taken back so far, by the file
	for i, s := range slices.Backward(l.steps) {
		if !gone[i] {
			continue
		}
		content, again := now[s.Path]
		if !again {
			if content, err = files.Content(s.Path); err != nil {
				return r, err
			}
		}
		is := s
		is.Before = sum(content)
		r.contents[is.Before] = content
		if err = l.rebase(&r, i, gone); err == nil {
			content, err = l.without(s, content)
		}
		switch {
		case err != nil && s.Editable:
			continue
		case err != nil && s.Serves != "":
			r.Left, gone[i] = append(r.Left, err), false
			continue
		case err != nil:
			return r, err
		case again:
			i := slices.IndexFunc(r.steps, func(other step) bool { return other.Path == s.Path })
			is.Before = r.steps[i].Before
			r.steps = slices.Delete(r.steps, i, i+1)
		}
		is.After, now[s.Path] = sum(content), content
		r.contents[is.After] = content
		r.steps = append(r.steps, is)
	}
	for _, s := range r.steps {
		if before, err := files.Content(s.Path); err == nil && !files.Same(before, now[s.Path]) { // it was read before
			r.Diff += diff(s.Path, before, now[s.Path])
		}
	}
	r.kept = without(r.kept, gone)
	return r, nil
}

// gone reports which steps go with features: theirs, and those that serve none of the files that are left.
func (l *Ledger) gone(features []string) []bool {
	gone := make([]bool, len(l.steps))
	for i, s := range l.steps {
		gone[i] = s.Serves == "" && slices.Contains(features, s.Feature)
	}
	for i, s := range l.steps {
		served := false
		for j, other := range l.steps {
			matches, _ := filepath.Match(s.Serves, other.Path) // a bad pattern is the only error
			served = served || matches && !gone[j]
		}
		gone[i] = gone[i] || s.Serves != "" && !served
	}
	return gone
}

// rebase takes a step out of what the ledger keeps of later ones: the contents of its file, and the folders that were
// made for it.
func (l *Ledger) rebase(r *Reversal, i int, gone []bool) error {
	for j := range r.kept {
		s := &r.kept[j]
		if gone[j] {
			continue
		}
		for _, dir := range l.steps[i].Folders {
			if strings.HasPrefix(s.Path, dir+"/") && !slices.Contains(s.Folders, dir) {
				s.Folders = append(slices.Clone(s.Folders), dir)
				slices.Sort(s.Folders)
			}
		}
		if s.Path != l.steps[i].Path || j < i {
			continue
		}
		for _, hash := range []*string{&s.Before, &s.After} {
			content, isNew := r.contents[*hash]
			var err error
			if !isNew {
				content, err = l.kept(*hash)
			}
			if err == nil {
				content, err = l.without(l.steps[i], content)
			}
			if err != nil {
				return &Changed{Feature: l.steps[i].Feature, Path: s.Path, Later: s.Feature}
			}
			*hash = sum(content)
			r.contents[*hash] = content
		}
	}
	return nil
}

// without returns a content without a step's change.
func (l *Ledger) without(s step, now []byte) ([]byte, error) {
	before, err := l.kept(s.Before)
	if err != nil {
		return nil, err
	}
	if sum(now) == s.After || files.Same(now, before) {
		return before, nil
	}
	var after []byte
	if s.needs(s.After) {
		after, err = l.kept(s.After)
	}
	if before == nil && err == nil {
		before, err = l.kept(s.Base)
	}
	if err != nil {
		return nil, err
	}
	if before != nil && now != nil && after != nil {
		if content, ok := takeOut(before, after, now); ok {
			return content, nil
		}
	}
	return nil, &Changed{Feature: s.Feature, Path: s.Path, Diff: diff(s.Path, after, now)}
}

// directive is a line of a template that is none of TOML.
var directive = regexp.MustCompile(`(?m)^[ \t]*\{\{.*$`)

// takeOut takes the change from before to after out of a TOML document, or a template of one, that has other changes.
// It reports whether the result differs by the keys of the change, and no others.
func takeOut(before, after, now []byte) (content []byte, ok bool) {
	edits, ok := udiff.Merge(udiff.Lines(string(after), string(before)), udiff.Lines(string(after), string(now)))
	if !ok {
		return nil, false
	}
	content, err := udiff.ApplyBytes(after, edits)
	var leaves [4]map[string]any
	for i, text := range [][]byte{before, after, now, content} {
		tree, parsed := tomledit.Parse(directive.ReplaceAll(text, nil))
		leaves[i], err = map[string]any{}, errors.Join(err, parsed)
		addLeaves(leaves[i], "", tree)
	}
	want := maps.Clone(leaves[2])
	for _, side := range leaves[:2] {
		for key := range side {
			was, existed := leaves[0][key]
			switch {
			case !reflect.DeepEqual(leaves[2][key], leaves[1][key]): // somebody else has set it
			case existed:
				want[key] = was
			default:
				delete(want, key)
			}
		}
	}
	return content, err == nil && reflect.DeepEqual(want, leaves[3])
}

// addLeaves adds the values of a tree that are no tables, by their paths.
func addLeaves(to map[string]any, path string, tree map[string]any) {
	for key, value := range tree {
		if table, isTable := value.(map[string]any); isTable && len(table) > 0 {
			addLeaves(to, path+key+"\x00", table)
			continue
		}
		to[path+key] = value
	}
}

// Revert carries out a reversal: every file becomes what it was before the first change, the last one first. Where
// something fails, also the check that follows, the files become again what they were.
func (l *Ledger) Revert(back Reversal, check func() error) error {
	for _, content := range back.contents {
		if _, err := l.keep(content); err != nil {
			return err
		}
	}
	if _, err := l.carryOut(back.steps, check); err != nil {
		return err
	}
	return l.replace(back.kept)
}

// Forget drops the record of the changes on behalf of features, and leaves the files as they are. It returns those.
func (l *Ledger) Forget(features ...string) (paths []string, err error) {
	gone := l.gone(features)
	for i, s := range l.steps {
		if gone[i] && !slices.Contains(paths, s.Path) {
			paths = append(paths, s.Path)
		}
	}
	return paths, l.replace(without(l.steps, gone))
}

// without returns the steps that do not go.
func without(steps []step, gone []bool) (kept []step) {
	for i, s := range steps {
		if !gone[i] {
			kept = append(kept, s)
		}
	}
	return kept
}

// replace replaces the record.
func (l *Ledger) replace(steps []step) error {
	l.steps = steps
	err := l.save()
	if err == nil {
		l.prune()
	}
	return err
}
