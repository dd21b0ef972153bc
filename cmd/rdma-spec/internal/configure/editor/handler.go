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

// handlerName is what containerd and a RuntimeClass both take.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Handler plans a handler that is the same as another one but for its base spec. With the names the same, that handler
// gets the base spec. The function spec makes the base spec from the one that the other handler has, nil where it has
// none.
func (d Editor) Handler(ctx context.Context, spec func(base []byte) ([]byte, error)) (change.Plan, error) {
	name := strings.TrimPrefix(d.Goal.Feature, goal.Handler)
	like := d.Goal.Asked[goal.Like]
	if !handlerName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a handler name: write lowercase letters, digits, and -", name)
	}
	b, err := d.base(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.Files(ctx, b.staged)
	if err != nil {
		return nil, err
	}
	var unheard error // why a file's handlers are not there
	hasModel := containerd.Sets("plugins", containerd.CRIPlugins[0], "containerd", "runtimes", like)
	for _, ignored := range d.Ignored(ctx, all, b.now) {
		if ignored.Lost != nil { // others of its handlers are there
			continue
		}
		unheard = fmt.Errorf("%s cannot be changed: %s: first, %s", ignored.Path, ignored.Reason, ignored.Fix)
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
	ours := exists && present[containerd.BaseSpecKey] == file // although the record does not have it
	base, err := d.baseSpec(model)
	switch {
	case err != nil:
		return nil, err
	case model["runtime_type"] == nil || model["runtime_type"] == "":
		last, _ := containerd.Last(all, hasModel)
		return nil, fmt.Errorf("the handler %q has no runtime_type, so its pods do not start: set one in %s first", like,
			cmp.Or(last.Path, d.File()))
	case ours && name == like:
		return nil, nil
	case exists && !ours && name != like:
		return nil, fmt.Errorf("%s already has a handler %q: choose another name, or add the base spec to it with --in-place",
			d.File(), name)
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
		return nil, fmt.Errorf("%[1]s is also the base_runtime_spec of %[2]s, so the change would affect all containers of "+
			"%[2]s: set another base_runtime_spec for %[2]s, or use --force", planned[0].Path, strings.Join(others, ", "))
	}
	config, err := d.plan(ctx, b)
	if err != nil && unheard != nil {
		err = unheard
	}
	return append(planned, config...), err
}

// waysToSet returns ways to write the values of a goal to a file of a version, the best one first.
func waysToSet(g record.Goal, values []goal.Value, tree map[string]any, files []containerd.File, version int) [][]set {
	if name, isHandler := strings.CutPrefix(g.Feature, goal.Handler); isHandler {
		_, all := containerd.Handlers(tree)
		model, exists := all[g.Asked[goal.Like]].(map[string]any)
		if !exists { // it stays as it is
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
	if version < 2 { // plugins have short names there
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

// criPlugins returns the names by which files of a version can set handlers: the version's own, and those by which they
// do, since containerd 2.2 ignores the one where a file has another.
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

// waysToSetHandler returns ways to write a handler: as the files write its model, or as containerd prints it; and the
// same with the handlers that no file writes, since containerd 1.x forgets its built-in ones where a file has any.
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

// handlerTable returns what files say of a handler; a later one adds to an earlier one.
func handlerTable(files []containerd.File, plugin, name string) map[string]any {
	all := map[string]any{}
	for _, f := range files {
		found, _ := tomledit.Lookup(f.Tree, "plugins", plugin, "containerd", "runtimes", name)
		table, _ := found.(map[string]any) // else containerd refuses it
		maps.Copy(all, tomledit.Clone(table))
	}
	return all
}

// unusable says that the base spec in a file is in the way.
func unusable(file string, err error) error {
	return fmt.Errorf("the base spec %[1]s cannot be used: %[2]w: write it with rdma-spec generate --to %[1]s; without "+
		"it, containerd does not serve CRI", file, files.Cause(err))
}

// baseSpecs reports the first base spec of the handlers with which CRI does not start. The one that is planned is
// written in any case.
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
			err = json.Unmarshal(text, &specs.Spec{}) // as containerd does
		}
		if err != nil {
			return unusable(files.Below(d.Root, file), err)
		}
	}
	return nil
}

// baseSpec returns the base spec of a handler, nil where it has none.
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
