// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// criPlugin returns its name in a configuration version.
func criPlugin(version int) string {
	switch {
	case version >= 3:
		return containerd.CRIPlugins[0]
	case version == 2:
		return containerd.CRIPlugins[1]
	}
	return containerd.CRIPlugins[2]
}

// handlerName is what containerd and a RuntimeClass both take.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Handler plans a handler that is the same as another one but for its base spec. With the names the same, that handler
// gets the base spec. The function spec makes the base spec from the one that the other handler has, nil where it has
// none.
func (d Editor) Handler(ctx context.Context, name, like string,
	spec func(base []byte) ([]byte, error)) (change.Plan, error) {
	if !handlerName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a handler's name: write lower-case letters, digits, and -", name)
	}
	now, relies, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	plugin, handlers := containerd.Handlers(now)
	model, known := handlers[like].(map[string]any)
	if !known {
		return nil, fmt.Errorf("%s has no handler %q: it has %s", d.File(), like,
			strings.Join(slices.Sorted(maps.Keys(handlers)), ", "))
	}
	file := d.Below(filepath.Join(filepath.Dir(d.File()), "rdma-spec-"+name+".json"))
	named := d.OnNode(file)
	wanted := tomledit.Clone(model)
	wanted[containerd.BaseSpecKey] = named
	present, exists := handlers[name].(map[string]any)
	ours := exists && present[containerd.BaseSpecKey] == named
	base, err := d.baseSpec(model)
	switch {
	case err != nil:
		return nil, err
	case ours && name != like && difference(notZero(present), notZero(wanted)) == "":
	case ours && name == like:
		return nil, nil
	case exists && name != like:
		return nil, fmt.Errorf("%s already has a handler %q: take another name, or give it the base spec with --in-place",
			d.File(), name)
	}
	content, err := spec(base)
	if err != nil {
		return nil, fmt.Errorf("base spec of %s: %w", like, err)
	}
	planned, err := change.Whole(change.File{Path: file, Content: content})
	if err != nil || ours {
		return planned, err
	}
	want, path := tomledit.Clone(now), []string{"plugins", plugin, "containerd", "runtimes"}
	all := tomledit.Clone(handlers)
	all[name] = wanted
	tomledit.Put(want, notZero(all), path...)
	config, err := d.plan(ctx, goal{
		file:     "90-rdma-spec-handler-" + name + ".toml",
		want:     want,
		handlers: path,
		relies:   relies,
		sets:     func(version int) [][]set { return waysToSet(relies, version, name, like, named, handlers) },
	})
	return append(planned, config...), err
}

// waysToSet returns ways to write a handler: as the files write its model, or as containerd prints it; and the same
// with the handlers that no file writes, since containerd 1.x forgets its built-in ones where a file has any.
func waysToSet(files []containerd.File, version int, name, like, file string, all map[string]any) (ways [][]set) {
	path := func(name ...string) []string {
		return append([]string{"plugins", criPlugin(version), "containerd", "runtimes"}, name...)
	}
	if name == like {
		ways = append(ways, []set{{path(name, containerd.BaseSpecKey), file}})
	}
	var builtIn []set
	for _, other := range slices.Sorted(maps.Keys(all)) {
		if definition, isTable := all[other].(map[string]any); isTable && other != name &&
			len(written(files, version, other)) == 0 {
			builtIn = append(builtIn, set{path(other), notZero(definition)})
		}
	}
	model, _ := all[like].(map[string]any) // Handler has looked
	said := written(files, version, like)
	for _, definition := range []map[string]any{notZero(said), said, notZero(model), tomledit.Clone(model)} {
		if len(definition) > 0 {
			definition[containerd.BaseSpecKey] = file
			ways = append(ways, []set{{path(name), definition}}, append(slices.Clone(builtIn), set{path(name), definition}))
		}
	}
	return ways
}

// written returns what files say of a handler; a later one adds to an earlier one.
func written(files []containerd.File, version int, name string) map[string]any {
	all := map[string]any{}
	for _, f := range files {
		found, _ := tomledit.Lookup(f.Tree, "plugins", criPlugin(version), "containerd", "runtimes", name)
		table, _ := found.(map[string]any) // else containerd refuses it
		maps.Copy(all, tomledit.Clone(table))
	}
	return all
}

// notZero returns a tree without what is false, 0 or empty, which needs not be written.
func notZero(tree map[string]any) map[string]any {
	all := map[string]any{}
	for key, value := range tree {
		if table, isTable := value.(map[string]any); isTable {
			value = notZero(table)
		}
		if v := reflect.ValueOf(value); !v.IsZero() && (v.Kind() != reflect.Slice && v.Kind() != reflect.Map || v.Len() > 0) {
			all[key] = value
		}
	}
	return all
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
		return nil, fmt.Errorf("the base spec %s cannot be used, and containerd serves no CRI without it: %w: write it with "+
			"rdma-spec generate --to %[1]s", file, files.Cause(err))
	}
	return text, nil
}
