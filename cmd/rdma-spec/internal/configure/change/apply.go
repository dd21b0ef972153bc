// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// step is a change of a file from one content to another. A content is nil if the file does not exist.
type step struct {
	path     string
	from, to []byte
	mode     fs.FileMode
}

func stepOf(e record.Entry, from, to []byte) step {
	return step{e.Path, from, to, fs.FileMode(e.Mode)}
}

// Apply changes the files of a plan for goals. Each file is replaced atomically, and keeps its mode and owner. If a
// change or the check after the changes fails, or if a file has changed since the plan was made, all files are
// restored. A file that already has the planned content is not changed.
func (l *Ledger) Apply(plan Plan, check func() error, goals ...record.Goal) error {
	if len(plan.Changed()) == 0 {
		return l.restate(goals)
	}
	err := plan.Outdated()
	if err != nil {
		return err
	}
	before := record.Record{Goals: slices.Clone(l.Goals), Files: slices.Clone(l.Files)}
	var steps []step
	for _, f := range plan {
		if changed := !files.Same(f.Before, f.Content); changed || f.Parts != nil {
			var e record.Entry
			if e, err = l.prepare(f, goals); err != nil {
				break
			}
			if changed {
				steps = append(steps, stepOf(e, f.Before, f.Content))
			}
		}
	}
	if err == nil {
		l.recordGoals(goals)
		err = l.save()
	}
	undone := err != nil
	if err == nil {
		undone, err = l.carryOut(steps, check)
	}
	if undone {
		err = errors.Join(err, l.keepOnly(before))
	}
	if err != nil {
		return err
	}
	l.settle()
	_ = l.save() // if this fails, the record is only longer than necessary
	return nil
}

// restate records goals that are already met, if they are new or requested with different options.
func (l *Ledger) restate(goals []record.Goal) error {
	goals = slices.DeleteFunc(slices.Clone(goals), func(g record.Goal) bool {
		old, recorded := l.Goal(g.Feature)
		return recorded && maps.Equal(old.Asked, g.Asked) && old.Version == g.Version && old.Config == g.Config
	})
	if len(goals) == 0 {
		return nil
	}
	l.recordGoals(goals)
	return l.save()
}

// recordGoals replaces goals in the record.
func (l *Ledger) recordGoals(goals []record.Goal) {
	for _, g := range goals {
		g.Time = time.Now().UTC().Truncate(time.Second)
		others := slices.DeleteFunc(slices.Clone(l.Goals), func(old record.Goal) bool { return old.Feature == g.Feature })
		others = append(others, g)
		l.Goals = others
	}
}

// settle reduces entries to the current content of their files, and drops entries without any content of ours.
func (l *Ledger) settle() {
	l.Files = slices.Clone(l.Files)
	for i, e := range l.Files {
		l.Files[i].Written = e.Written[max(0, len(e.Written)-1):]
	}
	l.Files = slices.DeleteFunc(l.Files, func(e record.Entry) bool {
		return len(e.Features()) == 0 || e.Feature != "" && slices.Equal(e.Written, []string{record.Sum(nil)})
	})
	l.leaveDirs()
}

// leaveDirs removes directories that were created for files that no longer exist, and drops them from the record.
func (l *Ledger) leaveDirs() {
	l.Dirs = slices.DeleteFunc(slices.Clone(l.Dirs), func(dir string) bool {
		isUsed := slices.ContainsFunc(l.Files, func(e record.Entry) bool { return strings.HasPrefix(e.Path, dir+"/") })
		if !isUsed {
			_ = os.Remove(dir) // a directory that others now use is not empty, and remains
		}
		return !isUsed
	})
}

// prepare records a change of a file for goals. If the change replaces a file of others, prepare keeps a backup.
func (l *Ledger) prepare(f File, goals []record.Goal) (e record.Entry, err error) {
	if filepath.Join(l.Root, files.OnNode(l.Root, f.Path)) != f.Path {
		return e, fmt.Errorf("%s is not below %s", f.Path, l.Root)
	}
	path := files.Below(l.Root, files.OnNode(l.Root, f.Path))
	e = record.Entry{Path: path, Mode: uint32(cmp.Or(f.Mode, 0o644)), Made: f.Before == nil, Editable: f.Editable}
	i := slices.IndexFunc(l.Files, func(e record.Entry) bool { return e.Path == path })
	if i >= 0 {
		e = l.Files[i]
		e.Made = e.Made || f.Before == nil
	}
	l.Dirs = slices.Concat(missingDirs(path), l.Dirs)
	slices.Sort(l.Dirs)
	l.Dirs = slices.Compact(l.Dirs)
	slices.Reverse(l.Dirs)
	if f.Parts != nil {
		e.Feature = ""
		e.Written = nil
		e.Parts = mergeParts(e.Parts, f.Parts, goals)
	} else {
		if !e.Made && !slices.Contains(e.Written, record.Sum(f.Before)) {
			e.Backup, err = atomicfile.Backup(path)
		}
		e.Feature = cmp.Or(f.Feature, goals[0].Feature)
		e.Parts = nil
		e.Written = append(slices.Clone(e.Written), record.Sum(f.Content))
	}
	if err != nil {
		return e, err
	}
	if i < 0 {
		l.Files = append(l.Files, e)
	} else {
		l.Files = slices.Clone(l.Files)
		l.Files[i] = e
	}
	return e, nil
}

// mergeParts returns the parts of a file, in which the planned parts of goals replace the goals' current parts.
func mergeParts(now, planned []record.Part, goals []record.Goal) []record.Part {
	parts := slices.DeleteFunc(slices.Clone(now), func(p record.Part) bool {
		return slices.ContainsFunc(goals, func(g record.Goal) bool { return g.Feature == p.Feature })
	})
	for _, p := range planned {
		i := slices.IndexFunc(parts, p.SameAs)
		switch {
		case i >= 0 && p.Companion():
			parts[i] = p
			continue
		case i >= 0:
			p.Inserted = parts[i].Inserted
		}
		parts = append(parts, p)
	}
	return parts
}

// ErrNotRestored means that a change failed, and that a file could not be restored.
var ErrNotRestored = errors.New("not restored")

// carryOut carries out the steps, and then calls check. If a step or the check fails, carryOut undoes the steps in
// reverse order, and reports whether all of them were undone.
func (l *Ledger) carryOut(steps []step, check func() error) (undone bool, err error) {
	taken := 0
	for _, s := range steps {
		if err = l.replaceContent(s, s.from, s.to); errors.Is(err, atomicfile.ErrChanged) {
			break
		}
		taken++
		if err != nil { // the file might be replaced: the last sync of its directory follows the replacement
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
		if back := l.replaceContent(s, s.to, s.from); back != nil {
			return false, errors.Join(err, fmt.Errorf("%w: %w", ErrNotRestored, back))
		}
	}
	return true, err
}

// replaceContent replaces the content from of a step's file with the content to. A file that already has the new
// content is not changed. If the file has any other content, replaceContent fails with atomicfile.ErrChanged.
func (l *Ledger) replaceContent(s step, from, to []byte) error {
	now, err := files.Content(s.path)
	if err != nil || files.Same(now, to) {
		return err
	}
	for _, dir := range missingDirs(s.path) {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755) // readable for all users, regardless of the umask
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot create %s: %w", dir, files.Cause(err))
		}
	}
	return l.put(s.path, from, to, s.mode)
}
