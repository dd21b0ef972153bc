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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Apply changes the files of a plan on behalf of a feature. Each file is replaced atomically, and keeps its mode and
// owner. Where something fails, also the check that follows the changes, or where a file is no longer what the plan was
// made from, all files become again what they were. A file that is already as planned is left alone.
func (l *Ledger) Apply(feature string, plan Plan, check func() error) error {
	changed := plan.Changed()
	if len(changed) == 0 {
		return nil
	}
	err := l.forgetUnwritten()
	if err == nil {
		err = plan.Outdated()
	}
	if err != nil {
		return err
	}
	from := len(l.steps)
	for _, f := range changed {
		s, err := l.prepare(feature, f)
		if err != nil {
			l.steps = l.steps[:from]
			return err
		}
		l.steps = append(l.steps, s)
	}
	err = l.save()
	if err == nil {
		err = l.writeFrom(from)
	}
	if err == nil && check != nil {
		err = check()
	}
	if err != nil {
		return errors.Join(err, l.undo(from))
	}
	_ = l.replace(l.settled()) // else the record is longer than it has to be
	return nil
}

// settled makes one step of the steps of a feature at a file between which no other feature has changed it. Where
// somebody else has, the file is put back to that.
func (l *Ledger) settled() (settled []step) {
	for _, s := range l.steps {
		i := len(settled) - 1
		for i >= 0 && settled[i].Path != s.Path {
			i--
		}
		if i >= 0 && settled[i].Feature == s.Feature && settled[i].Serves == s.Serves {
			if settled[i].After == s.Before {
				s.Before, s.Folders = settled[i].Before, settled[i].Folders
			}
			settled = slices.Delete(settled, i, i+1)
		}
		settled = append(settled, s)
	}
	return settled
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
	if filepath.Join(l.root, files.OnNode(l.root, f.Path)) != f.Path {
		return step{}, fmt.Errorf("%s is not below %s", f.Path, l.root)
	}
	path := files.Below(l.root, files.OnNode(l.root, f.Path))
	s = step{
		Feature: cmp.Or(f.Feature, feature), Path: path, Time: time.Now().UTC().Truncate(time.Second),
		Mode: uint32(cmp.Or(f.Mode, 0o644)), Folders: missingFolders(path), Serves: f.Serves,
	}
	for hash, content := range map[*string][]byte{&s.Before: f.Before, &s.After: f.Content, &s.Base: f.Base} {
		if *hash, err = l.keep(content); err != nil {
			return step{}, err
		}
	}
	return s, nil
}

// writeFrom writes the files of the steps from one on. Where that fails, it drops the steps that were not taken.
func (l *Ledger) writeFrom(from int) error {
	for i := from; i < len(l.steps); i++ {
		err := l.write(l.steps[i])
		switch {
		case errors.Is(err, atomicfile.ErrChanged):
			l.removeFolders(l.steps[i])
			l.steps = l.steps[:i]
		case err != nil: // the file may be replaced: the last sync of its folder is after that
			l.steps = l.steps[:i+1]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// write makes a file what it becomes by a step.
func (l *Ledger) write(s step) error {
	for _, dir := range s.Folders {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot make %s: %w", dir, oserror.Reason(err))
		}
	}
	return l.turn(s, s.Before, s.After)
}

// turn gives the file of a step the content to, by its hash, where it has the content from. A file that has the content
// already is left alone. It fails with atomicfile.ErrChanged where the file has another one.
func (l *Ledger) turn(s step, from, to string) error {
	now, err := current(s.Path)
	if err != nil || now == to {
		return err
	}
	old, err := l.kept(from)
	if err != nil {
		return err
	}
	if to == "" {
		return l.disk.Remove(s.Path, old)
	}
	content, err := l.kept(to)
	if err != nil {
		return err
	}
	return l.disk.Write(s.Path, old, content, fs.FileMode(s.Mode))
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
	if err := l.turn(s, s.After, s.Before); err != nil {
		return err
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
