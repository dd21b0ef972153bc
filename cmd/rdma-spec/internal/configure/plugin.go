// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
	"github.com/rdma-spec/rdma-spec/deploy/systemd"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Where the plugin and what belongs to it are.
const (
	pluginProgram  = "usr/local/bin/nri-rdma"
	pluginUnit     = "etc/systemd/system/nri-rdma.service"
	pluginLaunched = "opt/nri/plugins/90-rdma"
)

const pluginDefaults = `# The configuration of nri-rdma. Every key that is left out has its default: see docs/configuration.md.
# The plugin reads the file again when it changes.
{}
`

// PluginService plans that the plugin is a systemd service of the node below a root. program is the file of nri-rdma.
func PluginService(root, program string) (change.Plan, error) {
	if _, err := os.Stat(filepath.Join(root, pluginLaunched)); err == nil {
		return nil, fmt.Errorf("the runtime launches %s already: remove it first, since two plugins cannot both set memlock",
			filepath.Join(root, pluginLaunched))
	}
	return pluginFiles(root, program, pluginProgram, change.File{Path: filepath.Join(root, pluginUnit),
		Content: systemd.Service})
}

// PluginLaunched plans that the runtime launches the plugin on the node below a root.
func PluginLaunched(root, program string) (change.Plan, error) {
	if _, err := os.Stat(filepath.Join(root, pluginUnit)); err == nil {
		return nil, fmt.Errorf("%s runs the plugin already: remove it first, since two plugins cannot both set memlock",
			filepath.Join(root, pluginUnit))
	}
	return pluginFiles(root, program, pluginLaunched)
}

// pluginFiles plans the program and more, and the configuration where there is none.
func pluginFiles(root, program, to string, more ...change.File) (change.Plan, error) {
	content, err := os.ReadFile(program)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: put nri-rdma beside rdma-spec, or name it with --program", program)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", program, oserror.Reason(err))
	}
	files := append([]change.File{{Path: filepath.Join(root, to), Content: content, Mode: 0o755}}, more...)
	config := filepath.Join(root, policy.ConfigFile)
	if _, err := os.Stat(config); errors.Is(err, fs.ErrNotExist) {
		files = append([]change.File{{Path: config, Content: []byte(pluginDefaults)}}, files...)
	}
	return change.Whole(files...)
}

// OfService reports whether a file of the node below a root belongs to the plugin's service, and not to a container
// runtime.
func OfService(root, path string) bool {
	return slices.ContainsFunc([]string{pluginProgram, pluginUnit, policy.ConfigFile},
		func(name string) bool { return path == filepath.Join(root, name) })
}
