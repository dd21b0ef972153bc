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

// Contents are files that differ from those of the node, by their paths below the root with links resolved there. One
// whose content is nil is not there.
type Contents map[string][]byte

// Read reads a file of the node, or what it is to become. A file that does not exist is nil.
func (c Contents) Read(path string) ([]byte, error) {
	if text, planned := c[path]; planned {
		return text, nil
	}
	return files.Content(path)
}

// isDir reports whether a path is the directory of a file that is planned.
func (c Contents) isDir(path string) bool {
	for file, text := range c {
		if text != nil && strings.HasPrefix(file, path+"/") {
			return true
		}
	}
	return false
}

// OnNode returns the path that a file below the root has on the node itself.
func (d Daemon) OnNode(path string) string { return files.OnNode(d.Root, path) }

// Below returns where a file below the root is, with its links resolved there.
func (d Daemon) Below(path string) string { return files.Below(d.Root, d.OnNode(path)) }

// File is a file that a daemon reads when it starts.
type File struct {
	Name string         // on the node, as the daemon is told it, or as another file imports it
	Path string         // where it is read and written, below the root
	Text []byte         // nil where the configuration does not exist; what the platform makes of a template or drop-ins
	Tree map[string]any // what it says; nil where it is not TOML, which the daemon refuses in its own words
	// The file that imports it, and by which pattern; empty for the configuration itself.
	By, Pattern string
}

// Version is the version of the configuration that the file says; 0 where it says none.
func (f File) Version() int {
	version, _ := f.Tree["version"].(int64) // containerd refuses another type
	return int(version)
}

// Imports returns the patterns that the file imports, on the node: relative ones are below the directory of its name,
// not of what that is a link to.
func (f File) Imports() (patterns []string) {
	list, _ := f.Tree["imports"].([]any) // containerd refuses another type
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

// Files returns the files that the daemon reads at its next start, in the order in which it merges them: the
// configuration, what that imports, and then what those import. The configuration comes first also where it does not
// exist. The error is why the daemon does not start with them, although `containerd config dump` may ignore that; the
// files are those before it.
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

// matching returns the files that an import names, as containerd looks for them: a pattern is one with a star.
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
			name, _, isDeeper := strings.Cut(name, "/") // then the directory is there as well
			if matches, _ := filepath.Match(filepath.Base(pattern), name); isBelow && matches && (text != nil || !isDeeper) {
				found = append(found, filepath.Join(below, name)) // Glob has taken the pattern
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

// Importing returns the pattern by which a file of a name on the node would be imported, and the file that has the
// pattern; empty where it would not be.
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

// Last returns the last of the files that says something, which is the one that decides; false where none does.
func Last(all []File, says func(tree map[string]any) bool) (File, bool) {
	for _, f := range slices.Backward(all) {
		if says(f.Tree) {
			return f, true
		}
	}
	return File{}, false
}

// Sets returns a function that reports whether a tree has a value at a path. A plugin can have any of the names that
// it has had.
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

// Naming returns the handlers whose base spec is this file, as the last of the files says.
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
