// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// writing is an attempt to meet goals: the files with their new contents.
type writing struct {
	Editor
	staged  containerd.Contents
	planned change.Plan // without the current contents of the files
}

// write writes values of a feature to a place. The intended effective configuration contains the complete section.
func (w *writing) write(feature string, p place, version int, sets []set, want map[string]any) error {
	if p.block {
		for _, path := range p.files {
			if err := w.writeBlock(feature, path, version, sets); err != nil {
				return err
			}
		}
		return nil
	}
	if feature == goal.NRI && containerd.IsOld(w.Goal.Version) && len(sets) > 0 { // sections of files are not merged
		section, _ := tomledit.Lookup(want, "plugins", containerd.NRIPlugin)
		sets = []set{{sets[0].path[:2], section, true}}
	}
	lines, err := tables(sets)
	if err != nil {
		return err
	}
	w.stage(change.File{Feature: feature, Path: p.files[0], Content: fmt.Appendf(nil, "# Written by rdma-spec configure. "+
		"To remove this file, run rdma-spec configure --revert.\nversion = %d\n\n%s", version, lines)})
	if p.by == "" {
		return nil
	}
	return w.writeImport(feature, p, version)
}

// writeImport adds the directory of one of our files to the end of a file's imports. The import belongs to the goal as
// long as our file does, even if another goal added the import.
func (w *writing) writeImport(feature string, p place, version int) error {
	part := record.Part{Feature: feature, Path: []string{"imports"},
		Element: w.OnNode(filepath.Join(filepath.Dir(p.files[0]), "*.toml"))}
	text, err := w.staged.Read(p.by)
	if err != nil {
		return err
	}
	tree, err := tomledit.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", p.by, err)
	}
	after := text
	if list, _ := tree["imports"].([]any); len(tree) == 0 {
		after = tomledit.WithBlock(text, fmt.Appendf(nil, "version = %d\nimports = [%q]\n", version, part.Element))
	} else if !slices.Contains(list, any(part.Element)) {
		if after, err = tomledit.Add(text, part.Element, part.Path[0]); err != nil {
			return fmt.Errorf("%s: %w", p.by, err)
		}
		part.Inserted = inserted(text, after)
	}
	w.stage(change.File{Feature: feature, Path: p.by, Content: after, Parts: []record.Part{part}})
	return nil
}

// inserted returns the text that was inserted in one place.
func inserted(before, after []byte) string {
	at := 0
	for at < len(before) && before[at] == after[at] {
		at++
	}
	return string(after[at : at+len(after)-len(before)])
}

// writeBlock adds values to the block of a file. If the file already contains one of the values, it returns an error.
func (w *writing) writeBlock(feature, path string, version int, sets []set) error {
	text, err := w.staged.Read(path)
	if err != nil {
		return err
	}
	if text == nil && w.Template != "" {
		text = []byte(containerd.DefaultTemplate)
	}
	tree, err := tomledit.Parse(text)
	if err != nil {
		return err
	}
	based := w.Template != "" && containerd.IncludesBase(text)
	lines := tomledit.Block(text)
	if len(tree) == 0 && !based {
		lines = fmt.Appendf(nil, "version = %d\n", version)
	}
	for _, s := range sets {
		if _, has := tomledit.Lookup(tree, s.path...); has {
			return isThere(s)
		}
	}
	added, err := tables(sets)
	if err != nil {
		return err
	}
	if len(lines) > 0 {
		lines = append(lines, '\n')
	}
	lines = append(lines, added...)
	after := tomledit.WithBlock(text, lines)
	whole := after
	if based {
		rendered, err := w.staged.Read(w.File())
		if err != nil {
			return err
		}
		whole = tomledit.WithBlock(rendered, lines)
	}
	if _, err := tomledit.Parse(whole); err != nil {
		return isThere(sets[0])
	}
	w.stage(change.File{Feature: feature, Path: path, Content: after, Parts: parts(feature, sets)})
	return nil
}

// isThere returns the error for a table that others have already written.
func isThere(s set) error {
	table := s.path
	if _, isTable := s.value.(map[string]any); !isTable {
		table = table[:len(table)-1]
	}
	return fmt.Errorf("the table %s already exists, and a block cannot extend it", strings.Join(table, "."))
}

// stage stages a file, and keeps the parts that are already planned.
func (w *writing) stage(f change.File) {
	w.staged[f.Path] = f.Content
	i := slices.IndexFunc(w.planned, func(planned change.File) bool { return planned.Path == f.Path })
	if i < 0 {
		w.planned = append(w.planned, f)
		return
	}
	if f.Parts != nil {
		f.Parts = slices.Concat(w.planned[i].Parts, f.Parts)
	}
	w.planned[i] = f
}

// checkReaches returns an error if the files do not result in the intended effective configuration.
func (w *writing) checkReaches(ctx context.Context, want map[string]any) error {
	got, err := w.Effective(ctx, w.staged)
	if err != nil {
		return err
	}
	if paths := goal.Differences(got, want); paths != nil {
		return fmt.Errorf("the effective configuration would differ from the intended configuration at %s",
			strings.Join(paths[0], "."))
	}
	return nil
}

// plan returns the changes of the files. A file that names another file comes after that file. Files that no longer
// contain values for the goal come last.
func (w *writing) plan() (planned change.Plan, err error) {
	planned = w.planned
	for _, path := range slices.Sorted(maps.Keys(w.Without)) {
		if slices.ContainsFunc(planned, func(f change.File) bool { return f.Path == path }) {
			continue
		}
		f := change.File{Path: path, Content: w.staged[path]}
		if f.Content != nil {
			f.Parts = []record.Part{} // the file is not ours
		}
		planned = append(planned, f)
	}
	return change.Whole(planned...)
}

// tables writes values as tables that a file does not yet contain.
func tables(sets []set) ([]byte, error) {
	tree := map[string]any{}
	for _, s := range sets {
		tomledit.Put(tree, s.value, s.path...)
	}
	return tomledit.Tables(tree)
}
