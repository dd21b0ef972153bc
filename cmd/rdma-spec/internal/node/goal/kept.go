// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package goal

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// State is the current state of a feature.
type State string

// The states of a feature.
const (
	Kept    State = "kept"
	Lost    State = "lost"    // the feature has no effect
	Stale   State = "stale"   // the feature has an effect, but configure would now set it up differently
	Unknown State = "unknown" // Error contains the reason
)

// Feature is a feature that rdma-spec configure has set up, with its current state.
type Feature struct {
	Feature string            `json:"feature"` // such as nri, or handler rdma
	Asked   map[string]string `json:"asked,omitempty"`
	Config  string            `json:"config,omitempty"` // the configuration of the feature's containerd
	Since   time.Time         `json:"since"`            // when the feature was last configured
	State   State             `json:"state"`
	Error   string            `json:"error,omitempty"`
	Differs []string          `json:"differs,omitempty"` // the dotted keys that differ from the goal, or the missing files
}

// SideEffect lists the changes in a containerd's effective configuration that rdma-spec's files cause in addition to
// the features.
type SideEffect struct {
	Config  string   `json:"config"`
	Files   []string `json:"files"`
	Differs []string `json:"differs"` // dotted keys
}

// Configured is the current state of the features that rdma-spec configure has set up.
type Configured struct {
	Features    []Feature    `json:"features"`
	SideEffects []SideEffect `json:"sideEffects,omitempty"`
}

// Read compares the record of the node under a root with the effective configurations. It finds changes by any program
// or person.
func Read(ctx context.Context, root string) (all Configured, err error) {
	r, err := record.Read(root)
	if err != nil {
		return all, err
	}
	var configs []string
	for _, g := range r.Goals {
		if g.Config == "" {
			all.Features = append(all.Features, ofFiles(r, root, g))
		} else if !slices.Contains(configs, g.Config) {
			configs = append(configs, g.Config)
		}
	}
	for _, config := range configs {
		features, effect := ofDaemon(ctx, r, root, config)
		all.Features = append(all.Features, features...)
		if effect != nil {
			all.SideEffects = append(all.SideEffects, *effect)
		}
	}
	return all, nil
}

func feature(g record.Goal) Feature {
	return Feature{Feature: g.Feature, Asked: g.Asked, Config: g.Config, Since: g.Time, State: Kept}
}

// ofFiles checks a feature that has its own files. The feature is lost if a file is missing, or if a unit has a limit
// again.
func ofFiles(r *record.Record, root string, g record.Goal) Feature {
	f := feature(g)
	if unit := g.Asked[Unit]; unit != "" {
		if last, unlimited := Memlock(root, unit, ""); !unlimited {
			f.State = Lost
			f.Differs = []string{unit + " LimitMEMLOCK=" + last.Value}
		}
		return f
	}
	for _, file := range r.Paths(g.Feature) {
		if !containerd.Exists(file) {
			f.State = Lost
			f.Differs = append(f.Differs, files.OnNode(root, file))
		}
	}
	return f
}

// ofDaemon checks the features of a containerd. The current effective configuration must equal the configuration
// without rdma-spec's files plus the features' values.
func ofDaemon(ctx context.Context, r *record.Record, root, config string) (features []Feature, effect *SideEffect) {
	var goals []record.Goal
	for _, g := range r.Goals {
		if g.Config == config {
			goals = append(goals, g)
			features = append(features, feature(g))
		}
	}
	now, without, ours, err := bothWays(ctx, r, root, config)
	if err != nil {
		for i := range features {
			features[i].State = Unknown
			features[i].Error = err.Error()
		}
		return features, nil
	}
	want, wanted := withGoals(goals, without, now)
	for i := range goals {
		if len(wanted[i]) == 0 || !slices.ContainsFunc(wanted[i], func(v Value) bool { return hasPath(now, v.Path) }) {
			features[i].State = Lost
		}
	}
	var beyond []string
	for _, path := range Differences(now, want) {
		dotted := strings.Join(path, ".")
		i := slices.IndexFunc(wanted, func(of []Value) bool {
			return slices.ContainsFunc(of, func(v Value) bool {
				return len(path) >= len(v.Path) && slices.Equal(path[:len(v.Path)], v.Path)
			})
		})
		if i < 0 {
			beyond = append(beyond, dotted)
			continue
		}
		f := &features[i]
		f.Differs = append(f.Differs, dotted)
		if f.Feature == NRI || path[len(path)-1] == containerd.BaseSpecKey {
			f.State = Lost
		} else if f.State == Kept {
			f.State = Stale
		}
	}
	if len(beyond) > 0 {
		effect = &SideEffect{Config: config, Differs: beyond}
		for path := range ours {
			effect.Files = append(effect.Files, files.OnNode(root, path))
		}
		slices.Sort(effect.Files)
	}
	return features, effect
}

// withGoals returns an effective configuration with all goals, and the values of each goal. If the model of a handler
// is gone, the handler can stay unchanged.
func withGoals(goals []record.Goal, without, now map[string]any) (want map[string]any, wanted [][]Value) {
	want = without
	for _, g := range goals {
		values, err := Values(g, want)
		if err != nil {
			values = Present(now, g)
		}
		want = With(want, values)
		wanted = append(wanted, values)
	}
	return want, wanted
}

// Others returns the goals for a containerd, except the goal of feature, if one of them has a problem: a goal is not
// met, files have side effects, or containerd does not read a file. If no goal has a problem, Others returns nil.
func Others(ctx context.Context, r *record.Record, d containerd.Daemon, feature string) (others []record.Goal,
	err error) {
	for _, g := range r.Goals {
		if g.Config == d.Config && g.Feature != feature {
			others = append(others, g)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	var trees []map[string]any
	for _, features := range [][]string{{feature}, nil} {
		without, err := r.Without(features...)
		if err != nil {
			return nil, err
		}
		tree, err := d.Effective(ctx, without)
		if err != nil {
			return others, nil // the plan reports the reason
		}
		trees = append(trees, tree)
	}
	read, err := d.Files(ctx, nil)
	if err != nil {
		return nil, err
	}
	isUnread := func(e record.Entry) bool { // an import for the feature would activate the file
		isOthers := slices.ContainsFunc(others, func(g record.Goal) bool { return g.Feature == e.Feature })
		isRead := func(f containerd.File) bool { return f.Path == e.Path }
		return isOthers && filepath.Ext(e.Path) == ".toml" && !slices.ContainsFunc(read, isRead)
	}
	want, _ := withGoals(others, trees[1], trees[0])
	if Differences(trees[0], want) == nil && !slices.ContainsFunc(r.Files, isUnread) {
		return nil, nil
	}
	return others, nil
}

// bothWays returns the effective configurations of a containerd with the current files, and without the recorded
// changes. It also returns the files without these changes.
func bothWays(ctx context.Context, r *record.Record, root, config string) (now, without map[string]any,
	ours containerd.Contents, err error) {
	d, err := containerd.Choose(containerd.Find(root), files.Below(root, config), root)
	if err != nil {
		return nil, nil, nil, err
	}
	if now, err = d.Effective(ctx, nil); err != nil {
		return nil, nil, nil, err
	}
	if ours, err = r.Without(); err == nil {
		without, err = d.Effective(ctx, ours)
	}
	return now, without, ours, err
}

// Present returns the current values of a handler. It returns none if the handler no longer has its configured base
// spec.
func Present(now map[string]any, g record.Goal) (values []Value) {
	plugin, handlers := containerd.Handlers(now)
	name := strings.TrimPrefix(g.Feature, Handler)
	handler, _ := handlers[name].(map[string]any)
	if handler[containerd.BaseSpecKey] == BaseSpec(g.Config, name) {
		return []Value{{[]string{"plugins", plugin, "containerd", "runtimes", name}, handler}}
	}
	return nil
}

func hasPath(tree map[string]any, path []string) bool {
	_, exists := tomledit.Lookup(tree, path...)
	return exists
}
