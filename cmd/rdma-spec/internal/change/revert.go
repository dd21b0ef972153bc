// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
)

// Changed is the error where somebody else has changed a file since.
type Changed struct {
	Path string
	Diff string // what they changed
}

// Error implements error.
func (c *Changed) Error() string {
	return fmt.Sprintf("%s was changed since rdma-spec wrote it: take this difference back, or remove the lines of "+
		"rdma-spec by hand", c.Path)
}

// Reversal is what a Revert does: the files, and what they become.
type Reversal struct {
	features []string
	steps    []step   // what each file becomes, in the order in which that happens: Before, instead of After
	others   [][]byte // the contents of files that the ledger does not keep: programs, and files that no feature has made
	Diff     string
}

// Removes reports whether a file is removed.
func (r *Reversal) Removes(path string) bool {
	return slices.ContainsFunc(r.steps, func(s step) bool { return s.Path == path && s.Before == "" })
}

// RemoveBefore adds that a file is removed right before another one that is changed, since it names that one.
func (r *Reversal) RemoveBefore(other, path string) error {
	now, exists, err := read(path)
	if err != nil || !exists {
		return err
	}
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.Path == other })
	r.steps = slices.Insert(r.steps, i, step{Path: path, After: sum(now), Mode: 0o644})
	r.others, r.Diff = append(r.others, now), r.Diff+diff(path, now, nil, true, false)
	return nil
}

// Empty reports whether there is nothing to put back.
func (r Reversal) Empty() bool { return len(r.steps) == 0 }

// Paths returns the files that are put back.
func (r Reversal) Paths() []string {
	var all []string
	for _, s := range r.steps {
		all = append(all, s.Path)
	}
	return all
}

// Reversal returns what takes back the changes on behalf of features. It fails with Changed where somebody else has
// changed one of the files since, and where another feature has.
func (l *Ledger) Reversal(features ...string) (Reversal, error) {
	all := Reversal{features: features}
	var text strings.Builder
	for i, s := range slices.Backward(l.steps) {
		if !slices.Contains(features, s.Feature) {
			continue
		}
		if later := l.laterFeature(i, features); later != "" {
			return Reversal{}, fmt.Errorf("%s was changed for %s after it was changed for %s: revert %s first", s.Path,
				later, s.Feature, later)
		}
		if j := slices.IndexFunc(all.steps, func(r step) bool { return r.Path == s.Path }); j >= 0 {
			// else somebody else has changed the file between the two steps: it is put back to that
			if all.steps[j].Before == s.After {
				all.steps[j].Before, all.steps[j].Folders = s.Before, s.Folders
			}
			continue
		}
		all.steps = append(all.steps, s)
	}
	all.steps = slices.Clone(all.steps)
	for _, s := range all.steps {
		now, part, err := l.compare(s)
		if err != nil {
			return Reversal{}, err
		}
		text.WriteString(part)
		if part != "" && !s.needs(s.After) {
			all.others = append(all.others, now)
		}
	}
	all.Diff = text.String()
	return all, nil
}

// laterFeature returns another feature that has changed a step's file after it.
func (l *Ledger) laterFeature(i int, features []string) string {
	for _, s := range l.steps[i+1:] {
		if s.Path == l.steps[i].Path && !slices.Contains(features, s.Feature) {
			return s.Feature
		}
	}
	return ""
}

// compare returns the content of a file, and the diff of putting it back.
func (l *Ledger) compare(s step) (now []byte, text string, err error) {
	now, exists, err := read(s.Path)
	if err != nil {
		return nil, "", err
	}
	before, err := l.kept(s.Before)
	if err != nil {
		return nil, "", err
	}
	if exists == (s.Before != "") && bytes.Equal(now, before) {
		return now, "", nil
	}
	if !exists || sum(now) != s.After {
		var written []byte
		if s.needs(s.After) {
			written, err = l.kept(s.After)
		}
		return nil, "", cmp.Or(err, error(&Changed{Path: s.Path, Diff: diff(s.Path, written, now, true, exists)}))
	}
	return now, diff(s.Path, now, before, true, s.Before != ""), nil
}

// Revert carries out a reversal: every file becomes what it was before the first change, the last one first. Where
// something fails, also the check that follows, the files become again what they were.
func (l *Ledger) Revert(back Reversal, check func() error) error {
	for _, content := range back.others {
		if _, err := l.keep(content); err != nil {
			return err
		}
	}
	for i, s := range back.steps {
		err := l.putBack(s)
		if err == nil && check != nil && i == len(back.steps)-1 {
			err = check()
		}
		switch {
		case errors.Is(err, atomicfile.ErrChanged):
			return l.redo(back.steps[:i], err)
		case err != nil:
			return l.redo(back.steps[:i+1], err)
		}
	}
	l.steps = slices.DeleteFunc(l.steps, func(s step) bool { return slices.Contains(back.features, s.Feature) })
	if err := l.save(); err != nil {
		return err
	}
	l.prune()
	return nil
}

// redo makes files again what they were before a Revert that failed.
func (l *Ledger) redo(steps []step, because error) error {
	for _, s := range slices.Backward(steps) {
		if err := l.write(s); err != nil {
			return fmt.Errorf("%w; and %w", because, err)
		}
	}
	return because
}
