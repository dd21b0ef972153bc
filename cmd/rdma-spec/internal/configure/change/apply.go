// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
)

// Apply changes the files of a plan on behalf of a feature. Each file is replaced atomically, and keeps its mode and owner. Where
// something fails, also the check that follows the changes, all files become again what they were. A file that is already as planned
// is left alone.
func (l *Ledger) Apply(feature string, plan Plan, check func() error) error {
	plan, err := plan.Changed()
	if err != nil || len(plan) == 0 {
		return err
	}
	if err := l.forgetUnwritten(); err != nil {
		return err
	}
	from := len(l.steps)
	for _, f := range plan {
		s, err := l.prepare(feature, f)
		if err != nil {
			l.steps = l.steps[:from]
			return err
		}
		l.steps = append(l.steps, s)
	}
	err = l.save()
	if err == nil {
		err = l.write(plan, l.steps[from:])
	}
	if err == nil && check != nil {
		err = check()
	}
	if err != nil {
		return errors.Join(err, l.undo(from))
	}
	return nil
}

// forgetUnwritten drops what was recorded by a run that ended before it replaced the file.
func (l *Ledger) forgetUnwritten() error {
	for i := len(l.steps) - 1; i >= 0; i-- {
		s := l.steps[i]
		if l.later(i) {
			continue
		}
		now, err := current(s.Path)
		if err != nil {
			return err
		}
		if now == s.Before {
			l.removeFolders(s)
			l.steps = slices.Delete(l.steps, i, i+1)
		}
	}
	return nil
}

// later reports whether a file was changed again after a step.
func (l *Ledger) later(i int) bool {
	return slices.ContainsFunc(l.steps[i+1:], func(s step) bool { return s.Path == l.steps[i].Path })
}

// prepare keeps the contents of a file before and after a change.
func (l *Ledger) prepare(feature string, f File) (s step, err error) {
	if filepath.Join(l.root, l.onNode(f.Path)) != f.Path {
		return step{}, fmt.Errorf("%s is not below %s", f.Path, l.root)
	}
	s = step{
		Feature: cmp.Or(f.Feature, feature), Path: f.Path, Time: time.Now().UTC().Truncate(time.Second),
		Mode: uint32(cmp.Or(f.Mode, 0o644)), Folders: missingFolders(f.Path),
	}
	now, exists, err := read(f.Path)
	if err != nil {
		return step{}, err
	}
	if exists {
		if s.Before, err = l.keep(now); err != nil {
			return step{}, err
		}
	}
	s.After, err = l.keep(f.Content)
	return s, err
}

// write makes the files what they are to become.
func (l *Ledger) write(plan Plan, steps []step) error {
	for i, f := range plan {
		for _, dir := range steps[i].Folders {
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("cannot make %s: %w", dir, oserror.Reason(err))
			}
		}
		if err := l.files.Write(f.Path, f.Content, fs.FileMode(steps[i].Mode)); err != nil {
			return err
		}
	}
	return nil
}

// undo puts back what the steps from one on have changed, the last one first, and drops them.
func (l *Ledger) undo(from int) error {
	for _, s := range slices.Backward(l.steps[from:]) {
		if err := l.putBack(s); err != nil {
			return fmt.Errorf("not put back: %w", err)
		}
	}
	l.steps = l.steps[:from]
	return l.save()
}

// putBack gives a file the content before a step, and removes folders that were made for it.
func (l *Ledger) putBack(s step) error {
	now, err := current(s.Path)
	switch {
	case err != nil:
		return err
	case now == s.Before:
	case s.Before == "":
		if err := l.files.Remove(s.Path); err != nil {
			return err
		}
	default:
		content, err := l.kept(s.Before)
		if err != nil {
			return err
		}
		if err := l.files.Write(s.Path, content, fs.FileMode(s.Mode)); err != nil {
			return err
		}
	}
	l.removeFolders(s)
	return nil
}

// removeFolders removes the folders that were made for a file.
func (l *Ledger) removeFolders(s step) {
	for _, dir := range slices.Backward(s.Folders) {
		_ = os.Remove(dir) // a folder that others use meanwhile is not empty, and stays
	}
}
