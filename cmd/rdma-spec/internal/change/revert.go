// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"slices"
	"strings"

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
	steps    []step            // one for each file, in the order in which they happen
	contents map[string][]byte // that the ledger needs for them, by their hashes
	kept     record            // what the ledger has afterwards
	empty    bool
	Diff     string
}

// Contents returns what the files become, by their paths; nil for one that is removed.
func (r *Reversal) Contents() map[string][]byte {
	all := map[string][]byte{}
	for _, s := range r.steps {
		all[s.path] = r.contents[s.to]
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
	r.steps = slices.Insert(r.steps, i, step{path: path, from: sum(now), mode: 0o644})
	r.contents[sum(now)], r.Diff = now, r.Diff+diff(path, now, nil)
	return nil
}

// Empty reports whether there is nothing to restore, and nothing to drop from the record.
func (r *Reversal) Empty() bool { return r.empty }

// Paths returns the files that are restored.
func (r *Reversal) Paths() (all []string) {
	for _, s := range r.steps {
		if s.from != s.to {
			all = append(all, s.path)
		}
	}
	return all
}

// Reversal returns what takes back the changes on behalf of features. What others have changed in the files since
// stays. It fails with Changed where they have changed a file that is a feature's as a whole, or that is no TOML.
func (l *Ledger) Reversal(features ...string) (r Reversal, err error) {
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	r.contents, r.empty = map[string][]byte{}, !slices.ContainsFunc(l.Features(), gone)
	var folders []string
	for _, e := range slices.Backward(l.Files) {
		if !slices.ContainsFunc(e.features(), gone) {
			r.kept.Files = append(r.kept.Files, e)
			continue
		}
		now, err := files.Content(e.Path)
		if err != nil {
			return r, err
		}
		content, rest, err := l.without(e, now, gone)
		if err != nil {
			return r, err
		}
		if !files.Same(now, content) {
			r.steps = append(r.steps, e.step(sum(now), sum(content)))
			r.Diff += diff(e.Path, now, content)
		} else if now == nil && len(e.Folders) > 0 {
			r.steps = append(r.steps, e.step("", "")) // a run was killed before it removed them
		}
		for _, kept := range [][]byte{now, content} {
			r.contents[sum(kept)] = kept
		}
		if len(rest.features()) > 0 {
			r.contents[rest.Original], err = l.kept(rest.Original)
			r.kept.Files = append(r.kept.Files, rest)
		} else {
			folders = append(folders, e.Folders...)
		}
		if err != nil {
			return r, err
		}
	}
	slices.Reverse(r.kept.Files)
	for i, e := range r.kept.Files { // the folders of a file that goes are those of one that stays in them
		for _, dir := range folders {
			if strings.HasPrefix(e.Path, dir+"/") && !slices.Contains(e.Folders, dir) {
				e.Folders = append(slices.Clone(e.Folders), dir)
				slices.Sort(e.Folders)
			}
		}
		r.kept.Files[i] = e
	}
	r.kept.Goals = slices.DeleteFunc(slices.Clone(l.Goals), func(g Goal) bool { return gone(g.Feature) })
	return r, nil
}

// without returns what a file becomes without features, and its entry with those that are left.
func (l *Ledger) without(e entry, now []byte, gone func(feature string) bool) ([]byte, entry, error) {
	original, err := l.kept(e.Original)
	if err != nil {
		return nil, e, err
	}
	untouched := sum(now) == e.Written
	rest := e
	rest.Feature, rest.Keys = "", slices.DeleteFunc(slices.Clone(e.Keys), func(k Key) bool { return gone(k.Feature) })
	switch {
	case len(rest.Keys) == 0 && untouched:
		return original, rest, nil
	case now == nil || files.Same(now, original):
		return now, rest, nil
	case e.Feature != "" && e.Editable:
		return now, rest, nil
	}
	if e.Feature == "" {
		var going []Key
		for _, k := range e.Keys {
			if gone(k.Feature) && !slices.ContainsFunc(rest.Keys, k.sameAs) {
				going = append(going, k)
			}
		}
		content, cause := without(now, going)
		if cause == nil {
			if original == nil && len(rest.Keys) == 0 {
				content = orNone(content)
			}
			if untouched {
				rest.Written = sum(content)
			}
			return content, rest, nil
		}
		err = cause
	}
	written, _ := l.kept(e.Written) // of a program only the hash is known
	changed := &Changed{Path: e.Path, Diff: diff(e.Path, written, now), Cause: err}
	changed.Feature = e.features()[slices.IndexFunc(e.features(), gone)]
	return nil, e, changed
}

// Without returns what the files that others write, too, would be without features, by their paths; of all features
// where none is named.
func (l *Ledger) Without(features ...string) (map[string][]byte, error) {
	gone := func(feature string) bool { return len(features) == 0 || slices.Contains(features, feature) }
	all := map[string][]byte{}
	for _, e := range l.Files {
		if len(e.Keys) == 0 || !slices.ContainsFunc(e.features(), gone) {
			continue
		}
		now, err := files.Content(e.Path)
		if err != nil {
			return nil, err
		}
		if all[e.Path], _, err = l.without(e, now, gone); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Strip returns a document without the values of a feature in any file, of all features where none is named: it is made of
// those files.
func (l *Ledger) Strip(document []byte, features ...string) ([]byte, error) {
	var going []Key
	for _, e := range l.Files {
		for _, k := range e.Keys {
			if len(features) == 0 || slices.Contains(features, k.Feature) {
				going = append(going, k)
			}
		}
	}
	return without(document, going)
}

// Revert carries out a reversal: every file becomes what it was before the first change, the last one first. Where
// something fails, also the check that follows, the files become again what they were.
func (l *Ledger) Revert(back Reversal, check func() error) error {
	for _, content := range back.contents {
		if err := l.keep(content); err != nil {
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
	gone := func(feature string) bool { return slices.Contains(features, feature) }
	kept := record{Goals: slices.DeleteFunc(slices.Clone(l.Goals), func(g Goal) bool { return gone(g.Feature) })}
	for _, e := range l.Files {
		if slices.ContainsFunc(e.features(), gone) {
			paths = append(paths, e.Path)
			if gone(e.Feature) {
				e.Feature = ""
			}
			e.Keys = slices.DeleteFunc(slices.Clone(e.Keys), func(k Key) bool { return gone(k.Feature) })
			if e.Written = ""; len(e.features()) == 0 { // what is forgotten is not restored: only the other values go
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
