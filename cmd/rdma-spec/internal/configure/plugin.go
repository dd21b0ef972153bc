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
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/deploy/systemd"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// The names and directories of the plugin and its files.
const (
	pluginProgram  = "nri-rdma"
	pluginUnit     = "nri-rdma.service"
	pluginLaunched = "90-rdma"
	usrLocal       = "/usr/local"
)

const pluginDefaults = `# The configuration of nri-rdma. Omitted keys have default values: see docs/configuration.md.
# When this file changes, the plugin reloads it.
{}
`

// programs are the flags for the programs to install and their directory.
type programs struct{ from, prefix string }

func (p *programs) addFlags(cmd *cobra.Command, name, usage string) {
	cmd.Flags().StringVar(&p.from, name, "", usage)
	cmd.Flags().StringVar(&p.prefix, "prefix", usrLocal, "install programs in `DIR`/bin; if /usr is read-only, "+
		"set a different directory, such as /opt")
}

// source returns the path from --program or --programs. The default is name in the directory of this rdma-spec.
func (p *programs) source(name string) (string, error) {
	if !filepath.IsAbs(p.prefix) || strings.ContainsAny(p.prefix, " \t\n%\"'\\") {
		return "", cli.Usage(fmt.Errorf("--prefix %q cannot be used in a systemd unit: specify an absolute path without "+
			"white space, percent signs, quotation marks, or backslashes", p.prefix))
	}
	if p.from != "" {
		return p.from, nil
	}
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), name), err
}

// planProgram plans a program below a root.
func planProgram(root, from, to, hint string) (change.File, error) {
	content, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return change.File{}, fmt.Errorf("%s does not exist: %s", from, hint)
	}
	if err != nil {
		return change.File{}, fmt.Errorf("cannot read %s: %w", from, files.Cause(err))
	}
	return change.File{Path: files.Below(root, to), Content: content, Mode: 0o755}, nil
}

// unitOf plans a unit, or another file that names programs, below a root.
func (p *programs) unitOf(root, path string, text []byte) change.File {
	text = []byte(strings.ReplaceAll(string(text), usrLocal+"/bin/", filepath.Join(p.prefix, "bin")+"/"))
	return change.File{Path: files.Below(root, path), Content: text}
}

// Plugin plans the installation of the plugin on the node below a root: as a systemd service or, if launched is true,
// as a program that the runtime launches.
func (p *programs) Plugin(root string, launched bool) (change.Plan, error) {
	from, err := p.source(pluginProgram)
	if err == nil {
		err = otherPlugin(root, launched)
	}
	if err != nil {
		return nil, err
	}
	to := filepath.Join(p.prefix, "bin", pluginProgram)
	if launched {
		to = filepath.Join(agents.LaunchedDir, pluginLaunched)
	}
	file, err := planProgram(root, from, to,
		"put nri-rdma in the same directory as rdma-spec, or set the path of nri-rdma with --program")
	if err != nil {
		return nil, err
	}
	plan := []change.File{file}
	if !launched {
		plan = append(plan, p.unitOf(root, filepath.Join(unitDir, pluginUnit), systemd.Service))
	}
	config := files.Below(root, policy.ConfigFile)
	if _, err := os.Stat(config); errors.Is(err, fs.ErrNotExist) {
		plan = slices.Insert(plan, 0, change.File{Path: config, Content: []byte(pluginDefaults), Editable: true})
	}
	return change.Whole(plan...)
}

// errOther means that the plugin is already installed on the node in a different way, which is kept.
var errOther = errors.New("two plugins cannot both set memlock")

// staysBeside returns errOther with the existing installation and the fix.
func staysBeside(what, fix string) error {
	return fmt.Errorf("%s, and %w: %s", what, errOther, fix)
}

// otherPlugin returns an error if the plugin is installed in a different way on the node below a root.
func otherPlugin(root string, launched bool) error {
	for _, file := range agents.Launched(root) {
		if !launched || filepath.Base(file) != pluginLaunched {
			return staysBeside("the runtime already launches "+filepath.Join(root, file), "remove this file first")
		}
	}
	for _, dir := range process.UnitDirs {
		unit := filepath.Join(root, dir, pluginUnit)
		switch _, err := os.Stat(files.Below(root, dir+"/"+pluginUnit)); {
		case err != nil:
		case launched:
			return staysBeside(unit+" already runs the plugin", "remove this unit first")
		case dir != unitDir:
			return staysBeside("the package's unit "+unit+" already runs the plugin",
				"run systemctl enable --now nri-rdma")
		default:
			return nil // our unit, which overrides a package's unit
		}
	}
	for _, p := range agents.ReadPlugin(root, "").Own() {
		if p.InContainer {
			return staysBeside(fmt.Sprintf("the plugin is already running in a container (PID %d)", p.PID),
				"remove the container or its DaemonSet first")
		}
	}
	return nil
}

// isProgramOrUnit reports whether a file on the node is a program or unit that configure installs, or the plugin's
// configuration. Container runtimes do not read these files.
func (o *Options) isProgramOrUnit(path string) bool {
	switch filepath.Base(filepath.Dir(path)) {
	case "bin", "rules.d", "cdi":
		return true
	}
	return path == files.Below(o.Root, policy.ConfigFile) || filepath.Dir(path) == files.Below(o.Root, unitDir)
}
