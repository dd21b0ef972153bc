// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestDropIns(t *testing.T) {
	nri := func(section map[string]any) map[string]any {
		return map[string]any{"io.containerd.nri.v1.nri": section}
	}
	want := map[string]map[string]any{
		// Whole, since containerd 1.x replaces a plugin's whole section by that of an imported file.
		"nri-v2.toml": {"version": int64(2), "plugins": nri(map[string]any{
			"disable": false, "disable_connections": false, "socket_path": "/var/run/nri/nri.sock",
			"plugin_path":        "/opt/nri/plugins",
			"plugin_config_path": "/etc/nri/conf.d", "plugin_registration_timeout": "5s", "plugin_request_timeout": "2s",
		})},
		"nri-v3.toml": {"version": int64(3), "plugins": nri(map[string]any{"disable": false, "disable_connections": false})},
		"nri-validator-v3.toml": {"version": int64(3), "plugins": nri(map[string]any{
			"default_validator": map[string]any{"enable": true},
		})},
	}
	files, err := filepath.Glob(repository.Path(t, "deploy/containerd/*.toml"))
	if err != nil || len(files) != len(want) {
		t.Errorf("files %v, %v: want %d of them", files, err, len(want))
	}
	for _, file := range files {
		var got map[string]any
		if err := toml.Unmarshal([]byte(repository.Read(t, file)), &got); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if diff := cmp.Diff(want[filepath.Base(file)], got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", file, diff)
		}
	}
}

// TestNoGlobalRequiredPlugins guards the node: such a list would hold up every container, the plugin's own and the
// network's too.
func TestNoGlobalRequiredPlugins(t *testing.T) {
	list := regexp.MustCompile(`(?m)^\s*(- )?"?(required_plugins|requiredPlugins)"?\s*[=:]`)
	files := 0
	err := filepath.WalkDir(repository.Path(t, "deploy"), func(file string, entry fs.DirEntry, err error) error {
		if extension := filepath.Ext(file); err != nil || entry.IsDir() || extension != ".toml" && extension != ".yaml" {
			return err
		}
		files++
		if found := list.FindString(repository.Read(t, file)); found != "" {
			t.Errorf("%s has a global list of required plugins: %q", file, found)
		}
		return nil
	})
	if err != nil || files < 20 {
		t.Errorf("%d files, %v: want more", files, err)
	}
}
