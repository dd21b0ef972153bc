// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

func TestContainerdDropIns(t *testing.T) {
	nri := func(section map[string]any) map[string]any {
		return map[string]any{"io.containerd.nri.v1.nri": section}
	}
	want := map[string]map[string]any{
		// Whole, since containerd 1.x replaces a plugin's whole section by that of an imported file.
		"containerd/nri-v2.toml": {"version": int64(2), "plugins": nri(map[string]any{
			"disable": false, "disable_connections": false, "socket_path": "/var/run/nri/nri.sock", "plugin_path": "/opt/nri/plugins",
			"plugin_config_path": "/etc/nri/conf.d", "plugin_registration_timeout": "5s", "plugin_request_timeout": "2s",
		})},
		"containerd/nri-v3.toml": {"version": int64(3), "plugins": nri(map[string]any{"disable": false, "disable_connections": false})},
		"containerd/nri-validator-v3.toml": {"version": int64(3), "plugins": nri(map[string]any{
			"default_validator": map[string]any{"enable": true},
		})},
	}
	files, err := filepath.Glob("containerd/*")
	if err != nil || len(files) != len(want) {
		t.Errorf("files %v, %v: want %d of them", files, err, len(want))
	}
	for _, file := range files {
		var got map[string]any
		if err := toml.Unmarshal([]byte(read(t, file)), &got); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if diff := cmp.Diff(want[file], got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", file, diff)
		}
	}
}

// TestNoGlobalRequiredPlugins guards the node: such a list would hold up every container, the plugin's own and the network's too.
func TestNoGlobalRequiredPlugins(t *testing.T) {
	list := regexp.MustCompile(`(?m)^\s*(- )?"?(required_plugins|requiredPlugins)"?\s*[=:]`)
	if !list.MatchString("  required_plugins = [\"rdma\"]") {
		t.Fatal("the guard sees nothing")
	}
	for _, pattern := range []string{"*/*.toml", "*.yaml", "*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			if found := list.FindString(read(t, file)); found != "" {
				t.Errorf("%s has a global list of required plugins: %q", file, found)
			}
		}
	}
}
