// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// k0sManaged matches the first line of a configuration that k0s writes. Older versions of k0s write an empty line
// before it.
var k0sManaged = regexp.MustCompile(`\A(\r?\n)*# k0s_managed=true\r?(\n|\z)`)

// isManaged reports whether k0s writes the configuration at each start and loads the drop-ins. If someone removes the
// mark, k0s does not write or load these files.
func isManaged(file string) bool {
	text, err := files.Content(file)
	return err == nil && (text == nil || k0sManaged.Match(text))
}

// k0sCRI is the file in which k0s collects the CRI settings.
const k0sCRI = "/run/k0s/containerd-cri.toml"

// generated returns the configuration that k0s writes at its next start, and the contents of the other files that it
// writes. The newest k0s imports the directory of drop-ins. Other versions import each drop-in without CRI settings,
// and then one file with the merged CRI settings. For this file, k0s merges the drop-ins with CRI settings, key by key,
// into containerd's defaults and the image of the pods' sandboxes.
func (d Daemon) generated(ctx context.Context, planned Contents, main File) (File, Contents, error) {
	main.Tree, _ = tomledit.Parse(main.Text)
	collected := ""
	version := ""
	for _, name := range main.Imports() {
		if filepath.Base(name) == filepath.Base(k0sCRI) {
			collected = name
		}
	}
	var err error
	if d.Program != nil {
		if version, err = d.Program.Version(ctx); err != nil {
			return main, nil, err
		}
		if collected == "" && IsOld(version) {
			collected = k0sCRI
		}
	}
	dir := d.OnNode(d.DropIns) + "/*.toml"
	if collected == "" || d.Program == nil {
		if slices.Contains(main.Imports(), dir) {
			return main, planned, nil
		}
		if len(main.Tree) == 0 {
			main.Text = []byte("version = 3\n")
		}
		main.Text, err = tomledit.Add(main.Text, dir, "imports")
		return main, planned, err
	}
	imports, cri, err := d.collect(ctx, planned, dir, files.Below(d.Root, collected), IsOld(version))
	if err != nil {
		return main, nil, err
	}
	written := map[string]any{"version": cri["version"], "imports": append(imports, collected)}
	if main.Text, err = toml.Marshal(written); err != nil {
		return main, nil, err
	}
	with := Contents{}
	maps.Copy(with, planned)
	with[files.Below(d.Root, collected)], err = toml.Marshal(cri)
	return main, with, err
}

// collect returns the drop-ins that k0s imports, and the merged CRI settings of the other drop-ins. file is the file
// that k0s wrote at its last start.
func (d Daemon) collect(ctx context.Context, planned Contents, dir, file string, old bool) (imports []any,
	cri map[string]any, err error) {
	plugins := []string{CRIPlugins[0], "io.containerd.cri.v1.images"}
	image := []string{"pinned_images", "sandbox"}
	cri = map[string]any{"version": int64(3)}
	if old {
		plugins = CRIPlugins[1:2]
		image = []string{"sandbox_image"}
		defaults, err := d.load(ctx, []File{{Text: []byte("version = 2\n")}})
		if err != nil {
			return nil, nil, err
		}
		section, _ := tomledit.Lookup(defaults, "plugins", plugins[0])
		cri = map[string]any{"version": int64(2), "plugins": map[string]any{plugins[0]: section}}
	}
	text, err := planned.Read(file)
	if err != nil {
		return nil, nil, err
	}
	last, _ := tomledit.Parse(text) // k0s does not read this file
	path := append([]string{"plugins", plugins[len(plugins)-1]}, image...)
	if value, says := tomledit.Lookup(last, path...); says {
		tomledit.Put(cri, value, path...)
	}
	names, _ := d.matching(planned, dir) // the pattern is valid
	for _, name := range names {
		path := files.Below(d.Root, name)
		text, err := planned.Read(path)
		if err != nil {
			return nil, nil, err
		}
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w, so k0s does not start containerd", path, err)
		}
		if slices.ContainsFunc(plugins, func(plugin string) bool {
			_, says := tomledit.Lookup(tree, "plugins", plugin)
			return says
		}) {
			merge(cri, tree)
		} else {
			imports = append(imports, name)
		}
	}
	return imports, cri, nil
}

// merge copies the values of a tree into another tree. Keys that the first tree lacks stay unchanged.
func merge(into, tree map[string]any) {
	for key, value := range tree {
		table, isTable := value.(map[string]any)
		if own, is := into[key].(map[string]any); is && isTable {
			merge(own, table)
		} else {
			into[key] = value
		}
	}
}

// Rendered reports whether the platform rewrites a file of the daemon at each start.
func (d Daemon) Rendered(f File) bool {
	if d.DropIns != "" && f.By == d.File() {
		return filepath.Dir(f.Name) != d.OnNode(d.DropIns)
	}
	return f.By == "" && d.Template+d.DropIns != ""
}
