// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/requirement"
)

// NRI plans that NRI is on, and takes connections of plugins. With required, NRI's default validator is on as well, so
// that a pod can insist on a plugin; its list of plugins that every container must have stays as it is. There is
// nothing to plan where it is so.
func (d Editor) NRI(ctx context.Context, required bool) (change.Plan, error) {
	if err := d.hasNRI(ctx, required); err != nil {
		return nil, err
	}
	now, relies, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	wanted := []set{{[]string{"disable"}, false}, {[]string{"disable_connections"}, false}}
	if required {
		wanted = append(wanted, set{[]string{"default_validator", "enable"}, true})
	}
	wanted = slices.DeleteFunc(wanted, func(s set) bool {
		value, known := tomledit.Lookup(now, append([]string{"plugins", containerd.NRIPlugin}, s.path...)...)
		return known && value == s.value
	})
	if len(wanted) == 0 {
		return nil, nil
	}
	want := tomledit.Clone(now)
	for _, s := range wanted {
		tomledit.Put(want, s.value, append([]string{"plugins", containerd.NRIPlugin}, s.path...)...)
	}
	return d.plan(ctx, goal{
		file: "90-rdma-spec-nri.toml",
		want: want, relies: relies,
		sets: func(version int) (ways [][]set) {
			names := []string{containerd.NRIPlugin}
			if version < 2 { // plugins have short names there
				names = []string{"nri", containerd.NRIPlugin}
			}
			for _, name := range names {
				var way []set
				for _, s := range wanted {
					way = append(way, set{append([]string{"plugins", name}, s.path...), s.value})
				}
				ways = append(ways, way)
			}
			return ways
		},
	})
}

// hasNRI reports an error where the program has no NRI that serves.
func (d Editor) hasNRI(ctx context.Context, required bool) error {
	version, err := d.Program.Version(ctx)
	if err != nil {
		return err
	}
	if met, first := requirement.Adjusting.Met("containerd", version); !met {
		return fmt.Errorf("containerd %s has no NRI that can set limits: upgrade it to %s or later, or use rdma-spec "+
			"configure handler", version, first)
	}
	if met, first := requirement.Validating.Met("containerd", version); required && !met {
		return fmt.Errorf("containerd %s has no validator for required plugins: upgrade it to %s or later", version, first)
	}
	return nil
}

// now returns the effective configuration of the node as it is, and the files that it is made of.
func (d Editor) now(ctx context.Context) (tree map[string]any, all []containerd.File, err error) {
	if all, err = d.Files(ctx, nil); err != nil {
		return nil, nil, err
	}
	if tree, err = d.Effective(ctx, nil); err != nil {
		return nil, nil, fmt.Errorf("containerd cannot load %s: %w: correct it first", d.File(), err)
	}
	for _, plugin := range append([]string{"nri", containerd.NRIPlugin}, containerd.CRIPlugins...) {
		if containerd.Disables(tree, plugin) {
			file, _ := containerd.Last(all, func(tree map[string]any) bool { return containerd.Disables(tree, plugin) })
			return nil, nil, fmt.Errorf("%s turns the plugin %s off in disabled_plugins: remove it there first, if Kubernetes "+
				"is to use this containerd", cmp.Or(file.Path, d.File()), plugin)
		}
	}
	if len(tree) == 0 {
		return nil, nil, errors.New("containerd prints an empty configuration")
	}
	return tree, all, nil
}
