// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// effects are configurations, and containers about which they decide otherwise than the default does. They add to attacks
// what is no attack.
func effects() []attack {
	rows := []attack{
		{config: "optIn: {devices: false}", container: holding(heldVerbs(0))},
		{config: "optIn: {mofedRuntimeHandlers: [nvidia]}", container: subject{Container: Container{RuntimeHandler: "nvidia", MOFED: true}}},
	}
	for _, selected := range []string{"functions: [virtual]", "linkLayers: [Ethernet]", "netdevs: [none]", "numaNodes: [7]"} {
		rows = append(rows, attack{config: "inject: {namespaces: [ml-*], " + selected + "}", container: author("true")},
			attack{config: "rules: [{match: {resources: [rdma/*]}, inject: {always: true, " + selected + "}}]",
				container: askedFor("ml-a", kubeletHolds("rdma/ib"))})
	}
	return rows
}

// TestConfig_effects checks that each key of the configuration, and of a rule, has an effect: where a row of attacks or
// effects sets it, the default decides otherwise.
func TestConfig_effects(t *testing.T) {
	node := fixedNode(t)
	effective := map[string]bool{"inject.management": true} // New refuses it there
	for _, row := range slices.Concat(effects(), attacks()) {
		config, err := Parse([]byte(cmp.Or(row.config, restrictive)))
		if err != nil {
			continue
		}
		decide := func() (d Decision, taken bool) {
			p, err := New(config)
			if err != nil {
				return d, false
			}
			return p.decide(row.container, node), true
		}
		with, taken := decide()
		if !taken {
			continue
		}
		eachKey("", reflect.ValueOf(&config).Elem(), reflect.ValueOf(Default()), func(key string, value, usual reflect.Value) {
			given := reflect.ValueOf(value.Interface())
			value.Set(usual)
			without, taken := decide()
			value.Set(given)
			effective[key] = effective[key] || taken && !reflect.DeepEqual(with, without)
		})
	}
	for _, key := range slices.Sorted(maps.Keys(effective)) {
		if !effective[key] {
			t.Errorf("%s: no decision depends on it: have signal.go or decide.go read it, and add a row to effects, in this file. "+
				"If its effect is in plugin/*.go, write it into effective, and add a row to TestConfirm", key)
		}
	}
}

// eachKey visits the keys of a part of a configuration, and of its rules, with their values in another one, or those of
// an empty rule.
func eachKey(key string, part, other reflect.Value, visit func(key string, value, other reflect.Value)) {
	switch {
	case part.Kind() == reflect.Struct:
		for i := range part.NumField() {
			name, _, _ := strings.Cut(part.Type().Field(i).Tag.Get("json"), ",")
			eachKey(strings.Trim(key+"."+name, "."), part.Field(i), other.Field(i), visit)
		}
	case part.Kind() == reflect.Pointer:
		visit(key, part, other)
		if !part.IsNil() {
			eachKey(key, part.Elem(), reflect.Zero(part.Type().Elem()), visit)
		}
	case part.Type() == reflect.TypeFor[[]Rule]():
		visit(key, part, other)
		for i := range part.Len() {
			eachKey(key, part.Index(i), reflect.Zero(part.Type().Elem()), visit)
		}
	default:
		visit(key, part, other)
	}
}
