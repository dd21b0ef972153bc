// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"
)

// readContainerd reads the settings for RDMA containers from a containerd's effective configuration, and the files that
// contain these settings.
func (r *Runtime) readContainerd(tree map[string]any, all []containerd.File) {
	r.Known = true
	r.Socket = cmp.Or(lookup[string](tree, "grpc", "address"), lookup[string](tree, "plugins",
		"io.containerd.server.v1.grpc", "address"))
	r.CRIDisabled = containerd.Disables(tree, containerd.ServesCRI...)
	plugin, handlers := containerd.Handlers(tree)
	r.DefaultHandler = lookup[string](tree, "plugins", plugin, "containerd", "default_runtime_name")
	for _, name := range slices.Sorted(maps.Keys(handlers)) {
		handler, _ := handlers[name].(map[string]any) // always a table
		program := lookup[string](handler, "options", "BinaryName")
		kind := lookup[string](handler, "runtime_type")
		if program == "" && kind == "io.containerd.runc.v2" {
			program = "runc"
		}
		file, _ := containerd.Last(all, containerd.Sets("plugins", plugin, "containerd", "runtimes", name))
		r.Handlers = append(r.Handlers, Handler{Name: name, BaseSpec: lookup[string](handler, containerd.BaseSpecKey),
			NoType: kind == "", Sandboxed: sandbox.Handler(name, kind, program), File: file.Name, Program: program})
	}
	for _, cri := range containerd.CRIPlugins {
		on, says := tomledit.Lookup(tree, "plugins", cri, "enable_cdi")
		r.CDIOff = r.CDIOff || says && on == false
		r.CDIDirs = append(r.CDIDirs, texts(tree, "plugins", cri, "cdi_spec_dirs")...)
	}
	nri, there := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin)
	table, _ := nri.(map[string]any) // always a table
	r.NRI.Socket = lookup[string](table, "socket_path")
	r.NRI.RegistrationTimeout = duration(lookup[string](table, "plugin_registration_timeout"))
	r.NRI.RequestTimeout = duration(lookup[string](table, "plugin_request_timeout"))
	r.NRI.Validator = lookup[bool](table, "default_validator", "enable")
	r.NRI.Required = texts(table, "default_validator", "required_plugins")
	switch {
	case !there:
		r.NRI.Off = "this version of containerd does not support NRI"
	case containerd.Disables(tree, containerd.NRIPlugin, "nri"):
		r.NRI.Off = "NRI is in disabled_plugins"
	case lookup[bool](table, "disable"):
		r.NRI.Off = "disable = true"
	case lookup[bool](table, "disable_connections"):
		r.NRI.Off = "disable_connections = true"
	}
	r.NRI.On = r.NRI.Off == ""
}

// lookup returns a value of a tree, or the zero value if the tree has no value of this type at the path.
func lookup[T any](tree map[string]any, path ...string) T {
	found, _ := tomledit.Lookup(tree, path...)
	value, _ := found.(T)
	return value
}

// texts returns the strings of a list in a tree.
func texts(tree map[string]any, path ...string) (all []string) {
	for _, e := range lookup[[]any](tree, path...) { // always a list
		if text, ok := e.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// duration parses a duration. It returns 0 for an invalid duration.
func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text) // containerd prints a valid duration
	return d
}
