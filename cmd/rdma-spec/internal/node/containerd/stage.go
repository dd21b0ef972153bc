// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Contents are files that differ from those of the node, by their paths.
type Contents map[string][]byte

// Read reads a file of the node, or what it is to become. A file that does not exist is empty.
func (c Contents) Read(path string) ([]byte, error) {
	if text, planned := c[path]; planned {
		return text, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, oserror.Reason(err))
	}
	return text, nil
}

// OnNode returns the path that a file below the root has on the node itself.
func (d Daemon) OnNode(path string) string {
	if d.Root == "" {
		return path
	}
	return "/" + strings.TrimLeft(strings.TrimPrefix(path, filepath.Clean(d.Root)), "/")
}

// Imported returns the files that the configuration imports, in the order in which containerd loads them.
func (d Daemon) Imported(planned Contents, text []byte) ([]string, error) {
	patterns, err := d.Imports(text)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: imports: %q: %w", d.File, pattern, err)
		}
		for path := range planned {
			if matches, _ := filepath.Match(pattern, path); matches && !slices.Contains(files, path) {
				files = append(files, path)
			}
		}
		if !strings.ContainsAny(pattern, `*?[\`) { // containerd does not start where such a file is missing
			files = []string{pattern}
		}
		slices.Sort(files)
		all = append(all, files...)
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
			patterns = append(patterns, filepath.Join(d.Root, pattern))
		} else {
			patterns = append(patterns, filepath.Join(filepath.Dir(d.File), pattern))
		}
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
	files, err := d.Imported(Contents{}, text)
	if err != nil {
		return nil, err
	}
	all := change.Plan{{Path: d.File, Before: text, Content: text}}
	for _, file := range files {
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
// program loads copies in a temporary folder, whose imports have their paths below the root.
func (d Daemon) Effective(ctx context.Context, planned Contents) (map[string]any, error) {
	if len(planned) == 0 && Exists(d.File) && d.OnNode(d.File) == d.File {
		return d.Dump(ctx, d.File)
	}
	text, err := planned.Read(d.File)
	if err != nil {
		return nil, err
	}
	patterns, err := d.Imports(text)
	if err != nil {
		return nil, err
	}
	files, err := d.Imported(planned, text)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "rdma-spec-configure-")
	if err != nil {
		return nil, fmt.Errorf("cannot make a temporary folder: %w", oserror.Reason(err))
	}
	defer func() { _ = os.RemoveAll(folder) }() // copies
	if d.DropIns != "" {                        // the platform names these files when it starts
		for path := range planned {
			if filepath.Dir(path) == d.DropIns && !slices.Contains(files, path) {
				files = append(files, path)
			}
		}
	}
	for i, file := range files {
		copied, isPlanned := planned[file]
		if !isPlanned {
			if files[i], err = filepath.Abs(file); err != nil {
				return nil, err
			}
			continue
		}
		files[i] = filepath.Join(folder, fmt.Sprintf("import-%d.toml", i))
		if err := os.WriteFile(files[i], copied, 0o600); err != nil {
			return nil, fmt.Errorf("cannot write %s: %w", files[i], oserror.Reason(err))
		}
	}
	if len(patterns)+len(files) > 0 {
		if text, err = tomledit.Set(text, anyList(files), "imports"); err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
	}
	main := filepath.Join(folder, "config.toml")
	if err := os.WriteFile(main, text, 0o600); err != nil {
		return nil, fmt.Errorf("cannot write %s: %w", main, oserror.Reason(err))
	}
	return d.Dump(ctx, main)
}

func anyList(texts []string) (list []any) {
	for _, text := range texts {
		list = append(list, text)
	}
	return list
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
	if _, err := d.Effective(ctx, Contents{}); err != nil {
		return fmt.Errorf("containerd cannot load %s: %w", d.File, err)
	}
	return nil
}
