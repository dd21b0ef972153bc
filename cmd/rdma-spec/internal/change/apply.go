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
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// step is one change of one file, from a content to another one, by their hashes.
type step struct {
	path     string
	from, to string
	mode     fs.FileMode
	folders  []string
}

func (e entry) step(from, to string) step {
	return step{e.Path, from, to, fs.FileMode(e.Mode), e.Folders}
}

// Apply changes the files of a plan for goals. Each file is replaced atomically, and keeps its mode and owner. Where
// something fails, also the check that follows the changes, or where a file is no longer what the plan was made from,
// all files become again what they were. A file that is already as planned is left alone.
func (l *Ledger) Apply(plan Plan, check func() error, goals ...Goal) error {
	if len(plan.Changed()) == 0 {
		return l.restate(goals)
	}
	err := l.forgetUnwritten()
	if err == nil {
		err = plan.Outdated()
	}
	if err != nil {
		return err
	}
	before := record{Goals: slices.Clone(l.Goals), Files: slices.Clone(l.Files)}
	var steps []step
	for _, f := range plan {
		if changed := !files.Same(f.Before, f.Content); changed || f.Keys != nil {
			var e entry
			if e, err = l.prepare(cmp.Or(f.Feature, goals[0].Feature), f); err != nil {
				break
			}
			if changed {
				steps = append(steps, e.step(sum(f.Before), sum(f.Content)))
			}
		}
	}
	if err == nil {
		l.state(goals)
		err = l.save()
	}
	if err != nil {
		l.record = before
		return err
	}
	if undone, err := l.carryOut(steps, check); err != nil {
		if undone {
			l.record = before
			err = errors.Join(err, l.save())
		}
		return err
	}
	l.settle()
	_ = l.replace(l.record) // else the record is longer than it has to be
	return nil
}

// restate records goals that are met already, where they are new, or asked for in another way.
func (l *Ledger) restate(goals []Goal) error {
	goals = slices.DeleteFunc(slices.Clone(goals), func(g Goal) bool {
		old, recorded := l.Goal(g.Feature)
		return recorded && maps.Equal(old.Asked, g.Asked) && old.Version == g.Version && old.Config == g.Config
	})
	if len(goals) == 0 || l.lock == nil {
		return nil
	}
	l.state(goals)
	return l.save()
}

// state replaces goals of the record.
func (l *Ledger) state(goals []Goal) {
	for _, g := range goals {
		g.Time = time.Now().UTC().Truncate(time.Second)
		l.Goals = append(slices.DeleteFunc(slices.Clone(l.Goals), func(old Goal) bool { return old.Feature == g.Feature }), g)
	}
}

// settle ends pending changes, and drops entries that nothing is left of.
func (l *Ledger) settle() {
	l.Files = slices.Clone(l.Files)
	for i := range l.Files {
		l.Files[i].Pending = nil
	}
	l.Files = slices.DeleteFunc(l.Files, func(e entry) bool { return len(e.features()) == 0 })
}

// forgetUnwritten drops what was recorded by a run that ended before it replaced the file.
func (l *Ledger) forgetUnwritten() error {
	var kept []entry
	for _, e := range l.Files {
		if e.Pending != nil {
			now, err := current(e.Path)
			if err != nil {
				return err
			}
			if now == e.Pending.Before && now != e.Written {
				if e.Pending.Entry == nil {
					removeFolders(e.Folders)
					continue
				}
				e = *e.Pending.Entry
			}
		}
		kept = append(kept, e)
	}
	l.Files = kept
	l.settle()
	return nil
}

// prepare records a change of a file for a feature, and keeps the contents that it needs.
func (l *Ledger) prepare(feature string, f File) (entry, error) {
	if filepath.Join(l.root, files.OnNode(l.root, f.Path)) != f.Path {
		return entry{}, fmt.Errorf("%s is not below %s", f.Path, l.root)
	}
	path := files.Below(l.root, files.OnNode(l.root, f.Path))
	e := entry{Path: path, Original: sum(f.Before), Written: sum(f.Before), Mode: uint32(cmp.Or(f.Mode, 0o644)),
		Folders: missingFolders(path), Editable: f.Editable}
	was := pending{Before: sum(f.Before)}
	i := slices.IndexFunc(l.Files, func(e entry) bool { return e.Path == path })
	if i >= 0 {
		e = l.Files[i]
		old := e
		was.Entry = &old
		if f.Before == nil {
			e.Folders = missingFolders(path)
		}
	}
	original, err := l.kept(e.Original)
	switch {
	case i < 0:
		original, err = f.Before, nil
	case sum(f.Before) == e.Written:
	case f.Keys == nil || f.Before == nil:
		original, err = f.Before, nil
	default: // others have changed it since: what it is without us has changed, too
		if original, err = without(f.Before, e.Keys); e.Original == "" {
			original = orNone(original)
		}
	}
	if err != nil {
		return entry{}, err
	}
	if f.Keys == nil {
		e.Feature, e.Keys = feature, nil
	} else if e.Keys, err = e.with(feature, f); err != nil {
		return entry{}, err
	}
	e.Original, e.Written, e.Pending = sum(original), sum(f.Content), &was
	for _, content := range [][]byte{original, f.Before, f.Content} {
		if err := l.keep(content); err != nil {
			return entry{}, err
		}
	}
	if i < 0 {
		l.Files = append(l.Files, e)
	} else {
		l.Files = slices.Clone(l.Files)
		l.Files[i] = e
	}
	return e, nil
}

// with returns the keys of an entry with those of a feature as a plan says.
func (e entry) with(feature string, f File) (keys []Key, err error) {
	var own []Key
	for _, k := range e.Keys {
		if k.Feature == feature {
			own = append(own, k)
		} else {
			keys = append(keys, k)
		}
	}
	text, err := without(f.Before, own)
	if err != nil {
		return nil, err
	}
	tree, err := tomledit.Parse(text)
	if err != nil {
		return nil, err
	}
	others := slices.Clone(keys)
	for _, k := range f.Keys {
		if i := slices.IndexFunc(others, k.sameAs); i >= 0 {
			k.Before, k.Depth = others[i].Before, others[i].Depth
		} else {
			k = k.since(tree)
		}
		k.Feature = feature
		keys = append(keys, k)
	}
	return keys, nil
}

// ErrNotRestored is the error where a file is not what it was before a change that failed.
var ErrNotRestored = errors.New("not restored")

// carryOut gives the files of steps the contents after them, and then checks. Where something fails, it gives them the
// contents before them, the last one first, and reports whether that was done.
func (l *Ledger) carryOut(steps []step, check func() error) (undone bool, err error) {
	taken := 0
	for _, s := range steps {
		if err = l.turn(s, s.from, s.to); errors.Is(err, atomicfile.ErrChanged) {
			removeFolders(s.folders)
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
		if back := l.turn(s, s.to, s.from); back != nil {
			return false, errors.Join(err, fmt.Errorf("%w: %w", ErrNotRestored, back))
		}
	}
	return true, err
}

// turn gives the file of a step the content to, by its hash, where it has the content from. A file that has the content
// already is left alone. It fails with atomicfile.ErrChanged where the file has another one.
func (l *Ledger) turn(s step, from, to string) error {
	now, err := current(s.path)
	if err == nil && now != to {
		err = l.replaceFile(s, from, to)
	}
	if err == nil && to == "" {
		removeFolders(s.folders)
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
		s.folders = nil // they go with the file
	}
	for _, dir := range s.folders {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755) //nolint:gosec // for all who need what is in it, whatever the umask
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot make %s: %w", dir, files.Cause(err))
		}
	}
	return l.put(s.path, old, content, s.mode)
}

// removeFolders removes folders that were made for a file.
func removeFolders(folders []string) {
	for _, dir := range slices.Backward(folders) {
		_ = os.Remove(dir) // a folder that others use meanwhile is not empty, and stays
	}
}
