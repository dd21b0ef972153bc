// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// CRIPlugins are the names of the plugin that defines runtime handlers, with the newest name first.
var CRIPlugins = []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"}

// ServesCRI are the plugins that containerd needs to serve CRI. Since containerd 2.0, images have a separate plugin.
var ServesCRI = append(slices.Clone(CRIPlugins), "io.containerd.cri.v1.images")

// CRIPlugin returns the CRI plugin's name in a version of the configuration.
func CRIPlugin(version int) string {
	switch {
	case version >= 3:
		return CRIPlugins[0]
	case version == 2:
		return CRIPlugins[1]
	}
	return CRIPlugins[2]
}

// NRIPlugin is the name of containerd's plugin for NRI. Files without a version call it nri.
const NRIPlugin = "io.containerd.nri.v1.nri"

// aliases returns the names that a plugin has had.
func aliases(plugin string) []string {
	for _, names := range [][]string{CRIPlugins, {NRIPlugin, "nri"}} {
		if slices.Contains(names, plugin) {
			return names
		}
	}
	return []string{plugin}
}

// BaseSpecKey is the handler's key for the path of its base spec.
const BaseSpecKey = "base_runtime_spec"

// Handlers returns the handlers of an effective configuration, and the plugin that defines them.
func Handlers(tree map[string]any) (plugin string, all map[string]any) {
	for _, plugin := range CRIPlugins {
		if found, exists := tomledit.Lookup(tree, "plugins", plugin, "containerd", "runtimes"); exists {
			all, _ = found.(map[string]any) // always a table
			return plugin, all
		}
	}
	return "", nil
}

// Disables reports whether a configuration turns off one of these plugins in disabled_plugins.
func Disables(tree map[string]any, plugins ...string) bool {
	list, _ := tree["disabled_plugins"].([]any) // containerd rejects other types
	return slices.ContainsFunc(list, func(element any) bool {
		name, _ := element.(string)
		return slices.Contains(plugins, name)
	})
}
