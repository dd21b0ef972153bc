// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Contents are planned files, by their paths under the root with links resolved under the root. A file whose content is
// nil does not exist.
type Contents map[string][]byte

// Read returns the planned content of a file, or the file's content on the node. The content of a missing file is nil.
func (c Contents) Read(path string) ([]byte, error) {
	if text, planned := c[path]; planned {
		return text, nil
	}
	return files.Content(path)
}

// isDir reports whether a path is the directory of a planned file.
func (c Contents) isDir(path string) bool {
	for file, text := range c {
		if text != nil && strings.HasPrefix(file, path+"/") {
			return true
		}
	}
	return false
}

// OnNode returns the path on the node of a file under the root.
func (d Daemon) OnNode(path string) string { return files.OnNode(d.Root, path) }

// Below returns the path of a file under the root, with links resolved under the root.
func (d Daemon) Below(path string) string { return files.Below(d.Root, d.OnNode(path)) }

// File is a file that a daemon reads when it starts.
type File struct {
	Name string         // the path on the node, as the daemon or another file refers to it
	Path string         // the path under the root for reading and writing
	Text []byte         // nil if the configuration does not exist; rendered from a template or drop-ins
	Tree map[string]any // the parsed text; nil if it is not TOML, which the daemon refuses
	// By is the file that imports this file, and Pattern is the import's pattern. Both are empty for the main
	// configuration.
	By, Pattern string
}

// Version is the configuration version in the file; 0 if the file has no version.
func (f File) Version() int {
	version, _ := f.Tree["version"].(int64) // containerd rejects other types
	return int(version)
}

// Imports returns the patterns that the file imports, as absolute paths on the node. A relative pattern starts at the
// directory of the file's name, even if the file is a link.
func (f File) Imports() (patterns []string) {
	list, _ := f.Tree["imports"].([]any) // containerd rejects other types
	for _, element := range list {
		pattern, _ := element.(string)
		pattern = filepath.Clean(pattern)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(f.Name), pattern)
		}
		patterns = append(patterns, pattern)
	}
	return patterns
}

// Files returns the files that the daemon reads at its next start, in the order in which it merges them: the main
// configuration, its imports, and then the imports of these files. The main configuration comes first even if it does
// not exist. The error is the reason why the daemon does not start with these files, although `containerd config dump`
// might ignore the error. In this case, Files also returns the files before the error.
func (d Daemon) Files(ctx context.Context, planned Contents) (all []File, err error) {
	main, err := d.main(ctx, planned)
	if err != nil {
		return nil, err
	}
	if main.Text == nil && d.Told && d.Template == "" && d.DropIns == "" {
		return nil, fmt.Errorf("%s does not exist, but the daemon is started with --config %s", d.File(), d.Config)
	}
	if d.DropIns != "" {
		if main, planned, err = d.generated(ctx, planned, main); err != nil {
			return nil, err
		}
	}
	loaded := map[string]bool{}
	for pending := []File{main}; len(pending) > 0; pending = pending[1:] {
		f := pending[0]
		if loaded[f.Name] {
			continue
		}
		loaded[f.Name] = true
		if f.By != "" {
			f.Text, err = planned.Read(f.Path)
			switch {
			case errors.Is(err, syscall.EISDIR) || planned.isDir(f.Path):
				return all, fmt.Errorf("%s imports %q, which matches the directory %s and prevents containerd from starting: "+
					"import %s instead", f.By, f.Pattern, f.Name, filepath.Join(filepath.Dir(f.Pattern), "*.toml"))
			case err != nil:
				return all, err
			case f.Text == nil:
				return all, fmt.Errorf("%s imports %s, which does not exist, so containerd does not start: correct the import "+
					"first", f.By, f.Name)
			}
		}
		f.Tree, _ = tomledit.Parse(f.Text)
		all = append(all, f)
		for _, pattern := range f.Imports() {
			names, err := d.matching(planned, pattern)
			if err != nil {
				return all, fmt.Errorf("%s: imports: %q: %w", f.Path, pattern, err)
			}
			for _, name := range names {
				pending = append(pending, File{Name: name, Path: files.Below(d.Root, name), By: f.Path, Pattern: pattern})
			}
		}
	}
	return all, nil
}

// matching returns the files that match an import. Like containerd, it treats only an import with a star as a pattern.
func (d Daemon) matching(planned Contents, pattern string) (names []string, err error) {
	if !strings.Contains(pattern, "*") {
		return []string{pattern}, nil
	}
	dirs := []string{filepath.Dir(pattern)}
	if strings.ContainsAny(dirs[0], `*?[\`) {
		if dirs, err = filepath.Glob(filepath.Join(d.Root, dirs[0])); err != nil {
			return nil, err
		}
		for i, dir := range dirs {
			dirs[i] = d.OnNode(dir)
		}
	}
	for _, dir := range dirs {
		below := files.Below(d.Root, dir)
		found, err := filepath.Glob(filepath.Join(below, filepath.Base(pattern)))
		if err != nil {
			return nil, err
		}
		for path, text := range planned {
			name, isBelow := strings.CutPrefix(path, below+"/")
			name, _, isDeeper := strings.Cut(name, "/") // if deeper, the directory exists as well
			if matches, _ := filepath.Match(filepath.Base(pattern), name); isBelow && matches && (text != nil || !isDeeper) {
				found = append(found, filepath.Join(below, name)) // Glob has accepted the pattern
			}
		}
		slices.Sort(found)
		for _, path := range slices.Compact(found) {
			if text, isPlanned := planned[path]; !isPlanned || text != nil {
				names = append(names, filepath.Join(dir, filepath.Base(path)))
			}
		}
	}
	return names, nil
}

// Importing returns the pattern that would import a file with this name on the node, and the file with the pattern. The
// results are empty if no pattern matches.
func (d Daemon) Importing(all []File, name string) (pattern, by string) {
	path := files.Below(d.Root, name)
	for _, f := range all {
		for _, pattern := range f.Imports() {
			names, _ := d.matching(Contents{path: {}}, pattern) // a bad pattern imports nothing
			if slices.ContainsFunc(names, func(n string) bool { return files.Below(d.Root, n) == path }) {
				return pattern, f.Path
			}
		}
	}
	return "", ""
}

// Last returns the last file for which says returns true, because its settings override earlier files; false if there
// is no such file.
func Last(all []File, says func(tree map[string]any) bool) (File, bool) {
	for _, f := range slices.Backward(all) {
		if says(f.Tree) {
			return f, true
		}
	}
	return File{}, false
}

// Sets returns a function that reports whether a tree has a value at a path. The function accepts each name that a
// plugin has had.
func Sets(path ...string) func(tree map[string]any) bool {
	return func(tree map[string]any) bool {
		names := []string{""}
		if len(path) > 1 && path[0] == "plugins" {
			names = aliases(path[1])
		}
		return slices.ContainsFunc(names, func(name string) bool {
			path := slices.Clone(path)
			if name != "" {
				path[1] = name
			}
			_, is := tomledit.Lookup(tree, path...)
			return is
		})
	}
}

// Naming returns the handlers whose base spec is this file. For each handler, the last file that sets the base spec
// applies.
func (d Daemon) Naming(all []File, path string) (handlers []string) {
	named := map[string]string{}
	for _, f := range all {
		for _, plugin := range CRIPlugins {
			found, _ := tomledit.Lookup(f.Tree, "plugins", plugin, "containerd", "runtimes")
			table, _ := found.(map[string]any)
			for name := range table {
				if spec, says := tomledit.Lookup(table, name, BaseSpecKey); says {
					named[name], _ = spec.(string)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		its, err := os.Stat(files.Below(d.Root, named[name]))
		this, failed := os.Stat(path)
		if named[name] != "" && err == nil && failed == nil && os.SameFile(its, this) {
			handlers = append(handlers, name)
		}
	}
	return handlers
}
