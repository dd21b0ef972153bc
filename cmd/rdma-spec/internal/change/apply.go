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
	if err := l.save(); err != nil {
		l.steps = l.steps[:from]
		return err
	}
	if undone, err := l.carryOut(l.steps[from:], check); err != nil {
		if undone {
			l.steps = l.steps[:from]
			err = errors.Join(err, l.save())
		}
		return err
	}
	_ = l.replace(l.settled()) // else the record is longer than it has to be
	return nil
}

// settled makes one step of the steps of a feature at a file between which no other feature has changed it. What
// somebody else has changed between them stays: the file is restored to that without the earlier step or, where they
// changed the same lines, with it.
func (l *Ledger) settled() (settled []step) {
	for _, s := range l.steps {
		i := len(settled) - 1
		for i >= 0 && settled[i].Path != s.Path {
			i--
		}
		if i >= 0 && settled[i].Feature == s.Feature && settled[i].Serves == s.Serves {
			if settled[i].After == s.Before {
				s.Folders = settled[i].Folders
			}
			between, err := l.kept(s.Before)
			if err == nil {
				between, err = l.without(settled[i], between)
			}
			if hash, errKept := l.keep(between); err == nil && errKept == nil {
				s.Before = hash
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
		Editable: f.Editable,
	}
	for hash, content := range map[*string][]byte{&s.Before: f.Before, &s.After: f.Content, &s.Base: f.Base} {
		if *hash, err = l.keep(content); err != nil {
			return step{}, err
		}
	}
	return s, nil
}

// ErrNotRestored is the error where a file is not what it was before a change that failed.
var ErrNotRestored = errors.New("not restored")

// carryOut gives the files of steps the contents after them, and then checks. Where something fails, it gives them the
// contents before them, the last one first, and reports whether that was done.
func (l *Ledger) carryOut(steps []step, check func() error) (undone bool, err error) {
	taken := 0
	for _, s := range steps {
		if err = l.turn(s, s.Before, s.After); errors.Is(err, atomicfile.ErrChanged) {
			l.removeFolders(s)
			break
		}
		if taken++; err != nil { // the file may be replaced: the last sync of its folder is after that
			break
		}
	}
	if err == nil && check != nil {
		err = check()
	}
	if err == nil {
		return false, nil
	}
	for _, s := range slices.Backward(steps[:taken]) {
		if back := l.turn(s, s.After, s.Before); back != nil {
			return false, errors.Join(err, fmt.Errorf("%w: %w", ErrNotRestored, back))
		}
	}
	return true, err
}

// turn gives the file of a step the content to, by its hash, where it has the content from. A file that has the content
// already is left alone. It fails with atomicfile.ErrChanged where the file has another one.
func (l *Ledger) turn(s step, from, to string) error {
	now, err := current(s.Path)
	if err == nil && now != to {
		err = l.replaceFile(s, from, to)
	}
	if err == nil && to == "" {
		l.removeFolders(s)
	}
	return err
}

func (l *Ledger) replaceFile(s step, from, to string) error {
	old, err := l.kept(from)
	if err != nil {
		return err
	}
	content, err := l.kept(to)
	if err != nil {
		return err
	}
	if content == nil {
		s.Folders = nil // they go with the file
	}
	for _, dir := range s.Folders {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755) //nolint:gosec // for all who need what is in it, whatever the umask
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot make %s: %w", dir, files.Cause(err))
		}
	}
	return l.put(s.Path, old, content, fs.FileMode(s.Mode))
}

// removeFolders removes the folders that were made for a file.
func (l *Ledger) removeFolders(s step) {
	for _, dir := range slices.Backward(s.Folders) {
		_ = os.Remove(dir) // a folder that others use meanwhile is not empty, and stays
	}
}
