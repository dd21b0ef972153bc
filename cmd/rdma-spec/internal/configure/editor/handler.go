// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// handlerName matches the names that both containerd and a RuntimeClass accept.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Handler plans a handler that differs from another handler only in its base spec. If both names are the same, the
// existing handler gets the base spec. The function spec makes the new base spec from the other handler's base spec,
// which is nil if the other handler has no base spec.
func (d Editor) Handler(ctx context.Context, spec func(base []byte) ([]byte, error)) (change.Plan, error) {
	name := strings.TrimPrefix(d.Goal.Feature, goal.Handler)
	like := d.Goal.Asked[goal.Like]
	if !handlerName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a valid handler name: use lowercase letters, digits, and hyphens", name)
	}
	b, err := d.base(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.Files(ctx, b.staged)
	if err != nil {
		return nil, err
	}
	var unheard error // why a file's handlers are missing
	hasModel := containerd.Sets("plugins", containerd.CRIPlugins[0], "containerd", "runtimes", like)
	for _, ignored := range d.Ignored(ctx, all, b.now) {
		if ignored.Lost != nil { // the file's other handlers exist
			continue
		}
		unheard = fmt.Errorf("%s cannot be changed, because %s: first, %s", ignored.Path, ignored.Reason, ignored.Fix)
		if hasModel(ignored.Tree) {
			return nil, unheard
		}
	}
	if _, err := goal.Values(d.Goal, b.tree); err != nil {
		return nil, err
	}
	_, handlers := containerd.Handlers(b.tree)
	model, _ := handlers[like].(map[string]any) // it has values
	present, exists := handlers[name].(map[string]any)
	file := goal.BaseSpec(d.Config, name)
	ours := exists && present[containerd.BaseSpecKey] == file // even if it is not in the record
	base, err := d.baseSpec(model)
	switch {
	case err != nil:
		return nil, err
	case model["runtime_type"] == nil || model["runtime_type"] == "":
		last, _ := containerd.Last(all, hasModel)
		return nil, fmt.Errorf("the handler %q has no runtime_type, so its pods do not start: set runtime_type in %s "+
			"first", like, cmp.Or(last.Path, d.File()))
	case ours && name == like:
		return nil, nil
	case exists && !ours && name != like:
		return nil, fmt.Errorf("%s already has a handler named %q: choose another name, or add the base spec to "+
			"this handler with --in-place", d.File(), name)
	}
	if pattern, by := d.Importing(all, file); pattern != "" {
		return nil, fmt.Errorf("%s imports %q, which also matches the base spec %s, so containerd would not start: "+
			"import %s instead", by, pattern, file, filepath.Join(filepath.Dir(pattern), "*.toml"))
	}
	content, err := spec(base)
	if err != nil {
		return nil, fmt.Errorf("base spec of %s: %w", like, err)
	}
	planned, err := change.Whole(change.File{Path: files.Below(d.Root, file), Content: content})
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(d.Naming(all, planned[0].Path), func(other string) bool { return other == name })
	if len(others) > 0 && len(planned.Changed()) > 0 && !d.Force {
		return nil, fmt.Errorf("%[1]s is also the base_runtime_spec of %[2]s, so the change would affect all "+
			"containers of %[2]s: set a different base_runtime_spec for %[2]s, or use --force", planned[0].Path,
			strings.Join(others, ", "))
	}
	config, err := d.plan(ctx, b)
	if err != nil && unheard != nil {
		err = unheard
	}
	return append(planned, config...), err
}

// waysToSet returns ways to write the values of a goal to a file of a version, with the best way first.
func waysToSet(g record.Goal, values []goal.Value, tree map[string]any, files []containerd.File, version int) [][]set {
	if name, isHandler := strings.CutPrefix(g.Feature, goal.Handler); isHandler {
		_, all := containerd.Handlers(tree)
		model, exists := all[g.Asked[goal.Like]].(map[string]any)
		if !exists { // the existing handler stays unchanged
			model, _ = values[0].Value.(map[string]any)
		}
		var ways [][]set
		like := g.Asked[goal.Like]
		spec := goal.BaseSpec(g.Config, name)
		for _, plugin := range criPlugins(files, version) {
			ways = append(ways, waysToSetHandler(files, plugin, name, like, spec, model, all)...)
		}
		return ways
	}
	names := []string{containerd.NRIPlugin}
	if version < 2 { // in version 1, plugins have short names
		names = []string{"nri", containerd.NRIPlugin}
	}
	var ways [][]set
	for _, name := range names {
		var way []set
		for _, v := range values {
			if now, known := tomledit.Lookup(tree, v.Path...); !known || now != v.Value {
				way = append(way, set{append([]string{"plugins", name}, v.Path[2:]...), v.Value, false})
			}
		}
		ways = append(ways, way)
	}
	return ways
}

// criPlugins returns the plugin names under which files of a version can set handlers: the version's own name, and the
// names that the files use. If a file uses another name, containerd 2.2 ignores the version's own name.
func criPlugins(files []containerd.File, version int) []string {
	names := []string{containerd.CRIPlugin(version)}
	for _, name := range containerd.CRIPlugins {
		if name != names[0] && slices.ContainsFunc(files, func(f containerd.File) bool {
			_, sets := tomledit.Lookup(f.Tree, "plugins", name, "containerd", "runtimes")
			return sets
		}) {
			names = append(names, name)
		}
	}
	return names
}

// waysToSetHandler returns ways to write a handler: with the values from the files of its model, or with the values
// that containerd prints. Each way also exists with the handlers that no file contains, because containerd 1.x drops
// its built-in handlers if a file contains any handler.
func waysToSetHandler(files []containerd.File, plugin, name, like, file string,
	model, all map[string]any) (ways [][]set) {
	path := func(name ...string) []string {
		return append([]string{"plugins", plugin, "containerd", "runtimes"}, name...)
	}
	if name == like {
		ways = append(ways, []set{{path(name, containerd.BaseSpecKey), file, false}})
	}
	var builtIn []set
	for _, other := range slices.Sorted(maps.Keys(all)) {
		if definition, isTable := all[other].(map[string]any); isTable && other != name &&
			len(handlerTable(files, plugin, other)) == 0 {
			builtIn = append(builtIn, set{path(other), goal.NotZero(definition), false})
		}
	}
	for _, definition := range []map[string]any{goal.NotZero(handlerTable(files, plugin, like)), goal.NotZero(model)} {
		if len(definition) > 0 {
			definition[containerd.BaseSpecKey] = file
			made := set{path(name), definition, name != like}
			ways = append(ways, []set{made}, append(slices.Clone(builtIn), made))
		}
	}
	return ways
}

// handlerTable returns a handler's table from the files. A later file adds to an earlier file.
func handlerTable(files []containerd.File, plugin, name string) map[string]any {
	all := map[string]any{}
	for _, f := range files {
		found, _ := tomledit.Lookup(f.Tree, "plugins", plugin, "containerd", "runtimes", name)
		table, _ := found.(map[string]any) // containerd refuses any other type
		maps.Copy(all, tomledit.Clone(table))
	}
	return all
}

// unusable returns the error for a base spec that containerd cannot use.
func unusable(file string, err error) error {
	return fmt.Errorf("containerd cannot use the base spec %[1]s, and the CRI plugin does not load without this file "+
		"(%[2]w): to write the file, run rdma-spec generate --to %[1]s", file, files.Cause(err))
}

// baseSpecs returns an error for the handlers' first base spec with which CRI does not start. It ignores the planned
// base spec, which is always written.
func (d Editor) baseSpecs(tree map[string]any) error {
	_, handlers := containerd.Handlers(tree)
	planned, isHandler := strings.CutPrefix(d.Goal.Feature, goal.Handler)
	for _, name := range slices.Sorted(maps.Keys(handlers)) {
		said, _ := tomledit.Lookup(handlers, name, containerd.BaseSpecKey)
		file, _ := said.(string)
		if file == "" || isHandler && file == goal.BaseSpec(d.Config, planned) {
			continue
		}
		text, err := os.ReadFile(files.Below(d.Root, file))
		if err == nil {
			err = json.Unmarshal(text, &specs.Spec{}) // as in containerd
		}
		if err != nil {
			return unusable(files.Below(d.Root, file), err)
		}
	}
	return nil
}

// baseSpec returns the base spec of a handler; nil if the handler has no base spec.
func (d Editor) baseSpec(handler map[string]any) ([]byte, error) {
	file, _ := handler[containerd.BaseSpecKey].(string)
	if file == "" {
		return nil, nil
	}
	file = files.Below(d.Root, file)
	text, err := os.ReadFile(file)
	if err == nil {
		text, err = baseline.Read(bytes.NewReader(text))
	}
	if err != nil {
		return nil, unusable(file, err)
	}
	return text, nil
}
