// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/atomicfile"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Contents are files that differ from those of the node, by their paths.
type Contents map[string][]byte

// Read reads a file of the node, or what it is to become. A file that does not exist is empty.
func (c Contents) Read(path string) ([]byte, error) {
	if text, planned := c[path]; planned {
		return text, nil
	}
	return files.Content(path)
}

// OnNode returns the path that a file below the root has on the node itself.
func (d Daemon) OnNode(path string) string { return files.OnNode(d.Root, path) }

// Below returns where a file below the root is, with its links resolved there.
func (d Daemon) Below(path string) string { return files.Below(d.Root, d.OnNode(path)) }

// Imported returns the files that the configuration imports, in the order in which containerd loads them.
func (d Daemon) Imported(planned Contents, text []byte) ([]string, error) {
	patterns, err := d.Imports(text)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: imports: %q: %w", d.File, pattern, err)
		}
		for path := range planned {
			if matches, _ := filepath.Match(pattern, path); matches && !slices.Contains(found, path) {
				found = append(found, path)
			}
		}
		if !strings.ContainsAny(pattern, `*?[\`) { // containerd does not start where such a file is missing
			found = []string{pattern}
		}
		slices.Sort(found)
		for _, file := range found {
			all = append(all, d.Below(file))
		}
	}
	return all, nil
}

// Imports returns the patterns of the files that the configuration imports, below the root.
func (d Daemon) Imports(text []byte) (patterns []string, err error) {
	tree, err := tomledit.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.File, err)
	}
	list, _ := tree["imports"].([]any) // else there are none; containerd refuses another type
	for _, element := range list {
		pattern, _ := element.(string)
		if filepath.IsAbs(pattern) {
			pattern = filepath.Join(d.Root, pattern)
		} else {
			pattern = filepath.Join(filepath.Dir(d.File), pattern)
		}
		patterns = append(patterns, filepath.Join(d.Below(filepath.Dir(pattern)), filepath.Base(pattern)))
	}
	return patterns, nil
}

// Loaded returns the files that containerd loads, as a plan that relies on them. It is an error where a file that is
// imported by its name does not exist: the daemon does not start then, although `containerd config dump` ignores it,
// and whatever is imported behind it.
func (d Daemon) Loaded() (change.Plan, error) {
	text, err := Contents{}.Read(d.File)
	if err != nil {
		return nil, err
	}
	imported, err := d.Imported(Contents{}, text)
	if err != nil {
		return nil, err
	}
	all := change.Plan{{Path: d.File, Before: text, Content: text}}
	for _, file := range imported {
		text, err := Contents{}.Read(file)
		switch {
		case err != nil:
			return nil, err
		case text == nil:
			return nil, fmt.Errorf("%s imports %s, which does not exist, and containerd does not start without it: correct it "+
				"first", d.File, d.OnNode(file))
		}
		all = append(all, change.File{Path: file, Before: text, Content: text})
	}
	return all, nil
}

// Effective returns the configuration that containerd makes of a file and its imports with planned contents. The
// program loads copies in memory, whose imports have their paths below the root.
func (d Daemon) Effective(ctx context.Context, planned Contents) (map[string]any, error) {
	if len(planned) == 0 && Exists(d.File) && d.OnNode(d.File) == d.File {
		return d.Dump(ctx, d.File)
	}
	text, err := planned.Read(d.File)
	if err != nil {
		return nil, err
	}
	imported, err := d.Imported(planned, text)
	if err != nil {
		return nil, err
	}
	tree, err := tomledit.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.File, err)
	}
	if d.DropIns != "" { // the platform names these files when it starts
		for path := range planned {
			if filepath.Dir(path) == d.DropIns && !slices.Contains(imported, path) {
				imported = append(imported, path)
			}
		}
	}
	var list []any
	for _, file := range imported {
		if content, isPlanned := planned[file]; isPlanned {
			staged, err := atomicfile.InMemory(content)
			if err != nil {
				return nil, err
			}
			defer func() { _ = staged.Close() }() // a copy
			file = staged.Name()
		}
		list = append(list, file)
	}
	if _, says := tree["imports"]; says || len(list) > 0 {
		if text, err = tomledit.Set(text, list, "imports"); err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
	}
	main, err := atomicfile.InMemory(text)
	if err != nil {
		return nil, err
	}
	defer func() { _ = main.Close() }() // a copy
	return d.Dump(ctx, main.Name())
}

// Dump returns the effective configuration of a file, without the list of files that it was made of.
func (d Daemon) Dump(ctx context.Context, file string) (map[string]any, error) {
	text, err := d.Program.Dump(ctx, file)
	if err != nil {
		return nil, err
	}
	tree, err := tomledit.Parse(bytes.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("the effective configuration is not TOML: %w", err)
	}
	delete(tree, "imports")
	return tree, nil
}

// Check reports an error where containerd cannot load the files of the node as they are.
func (d Daemon) Check(ctx context.Context) error {
	if !Exists(d.File) {
		return nil
	}
	if _, err := d.Loaded(); err != nil {
		return err
	}
	if _, err := d.Effective(ctx, Contents{}); err != nil {
		return fmt.Errorf("containerd cannot load %s: %w", d.File, err)
	}
	return nil
}
