// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package goal defines the goal of each feature of rdma-spec configure: the values that containerd's effective
// configuration must contain. It also checks whether the configuration meets a goal. The doctor and configure share
// this package. Package goal plans no changes.
package goal

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// The features and their parameters.
const (
	NRI     = "nri"
	Handler = "handler " // followed by the handler's name
	Limits  = "limits"

	Like     = "like"     // the handler that is the model of the new handler
	Required = "required" // "true" turns on the default validator
	Unit     = "unit"     // the unit whose limit is removed
)

// Value is a value of the effective configuration.
type Value struct {
	Path  []string
	Value any
}

// Memlock returns the last memlock setting of a unit, without the settings of one file, and whether this setting is
// unlimited.
func Memlock(root, unit, without string) (last process.Setting, unlimited bool) {
	for _, s := range process.UnitSettings(root, unit, "LimitMEMLOCK") {
		if s.File != without {
			last = s
		}
	}
	soft, hard, isPair := strings.Cut(last.Value, ":")
	return last, soft == "infinity" && (!isPair || hard == "infinity")
}

// BaseSpec returns the path of a handler's base spec for the daemon with this configuration.
func BaseSpec(config, handler string) string {
	return path.Join(path.Dir(config), "rdma-spec-"+handler+".json")
}

// Values returns the values that a goal requires, based on the effective configuration without the goal. A goal that
// does not concern containerd has no values.
func Values(g record.Goal, without map[string]any) ([]Value, error) {
	name, isHandler := strings.CutPrefix(g.Feature, Handler)
	switch {
	case isHandler:
		plugin, handlers := containerd.Handlers(without)
		like := g.Asked[Like]
		model, known := handlers[like].(map[string]any)
		if !known {
			return nil, fmt.Errorf("%s has no handler %q: its handlers are %s", g.Config, like,
				strings.Join(slices.Sorted(maps.Keys(handlers)), ", "))
		}
		at := []string{"plugins", plugin, "containerd", "runtimes", name}
		if name == like {
			return []Value{{append(at, containerd.BaseSpecKey), BaseSpec(g.Config, name)}}, nil
		}
		made := tomledit.Clone(model)
		made[containerd.BaseSpecKey] = BaseSpec(g.Config, name)
		return []Value{{at, made}}, nil
	case g.Feature == NRI && g.Config != "":
		of := func(key ...string) []string { return append([]string{"plugins", containerd.NRIPlugin}, key...) }
		all := []Value{{of("disable"), false}, {of("disable_connections"), false}}
		if g.Asked[Required] == "true" {
			all = append(all, Value{of("default_validator", "enable"), true})
		}
		return all, nil
	}
	return nil, nil
}

// Sets reports whether a goal sets a path of an effective configuration.
func Sets(g record.Goal, path []string) bool {
	name, isHandler := strings.CutPrefix(g.Feature, Handler)
	if !isHandler {
		return g.Feature == NRI && slices.Contains(path, containerd.NRIPlugin)
	}
	at := slices.Index(path, "runtimes") + 1
	return at > 0 && at < len(path) && path[at] == name &&
		(g.Asked[Like] != name || path[len(path)-1] == containerd.BaseSpecKey)
}

// With returns a copy of an effective configuration with values added.
func With(tree map[string]any, values []Value) map[string]any {
	tree = tomledit.Clone(tree)
	for _, v := range values {
		tomledit.Put(tree, v.Value, v.Path...)
	}
	return tree
}

// Differences returns the paths in which two effective configurations differ. In handlers, a zero value is equal to a
// missing key, because containerd can print either.
func Differences(a, b map[string]any) [][]string {
	return tomledit.Differences(comparable(a), comparable(b))
}

func comparable(tree map[string]any) map[string]any {
	plugin, handlers := containerd.Handlers(tree)
	if len(handlers) == 0 {
		return tree
	}
	tree = tomledit.Clone(tree)
	tomledit.Put(tree, NotZero(handlers), "plugins", plugin, "containerd", "runtimes")
	return tree
}

// NotZero returns a tree without values that are false, 0, or empty. Such values can be omitted.
func NotZero(tree map[string]any) map[string]any {
	all := map[string]any{}
	for key, value := range tree {
		if table, isTable := value.(map[string]any); isTable {
			value = NotZero(table)
		}
		if v := reflect.ValueOf(value); !v.IsZero() && (v.Kind() != reflect.Slice && v.Kind() != reflect.Map || v.Len() > 0) {
			all[key] = value
		}
	}
	return all
}
