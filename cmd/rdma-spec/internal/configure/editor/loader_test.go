// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// loader loads configurations as containerd does: 2.x merges what a file imports, and in 1.x an imported section
// replaces the section.
type loader string

func (l loader) Version(context.Context) (string, error) { return string(l), nil }

func (l loader) Dump(_ context.Context, file string) ([]byte, error) {
	tree, err := l.load(file)
	if err != nil {
		return nil, err
	}
	tree["version"] = int64(2) // containerd prints its own
	for key, value := range map[string]any{"disable": true, "disable_connections": false,
		"socket_path": "/var/run/nri/nri.sock"} {
		if _, said := tomledit.Lookup(tree, "plugins", containerd.NRIPlugin, key); !said {
			tomledit.Put(tree, value, "plugins", containerd.NRIPlugin, key)
		}
	}
	return toml.Marshal(tree)
}

func (l loader) load(file string) (map[string]any, error) {
	files, err := containerd.Daemon{Config: file}.Files(context.Background(), nil)
	tree := map[string]any{}
	for i, f := range files {
		text, parseErr := tomledit.Parse(f.Text)
		if parseErr != nil {
			return nil, parseErr
		}
		if i > 0 {
			delete(text, "version")
			l.merge(tree, text, 0)
			continue
		}
		tree = text
	}
	return tree, err
}

func (l loader) merge(into, from map[string]any, depth int) {
	for key, value := range from {
		old, isOld := into[key].(map[string]any)
		table, isTable := value.(map[string]any)
		if isOld && isTable && (depth == 0 || !strings.HasPrefix(string(l), "1.")) {
			l.merge(old, table, depth+1)
			continue
		}
		into[key] = value
	}
}
