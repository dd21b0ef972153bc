// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

const (
	// LaunchedDir is the directory with the plugins that a runtime launches.
	LaunchedDir = "opt/nri/plugins"
	// largestConfig is the maximum size of a configuration, in bytes.
	largestConfig = 1 << 20
)

// launchedName matches the file name of a plugin that a runtime launches, such as 90-rdma.
var launchedName = regexp.MustCompile(`^[0-9]{2}-(.+)$`)

// ReadPlugin returns the NRI plugins that run on the node under a root, and the policy in force. tool is the caller's
// version.
func ReadPlugin(root, tool string) Plugin {
	answer := Plugin{Tool: tool, Unit: process.HasUnit(root, PluginName+".service"), Policy: ReadPolicyInForce(root)}
	for _, program := range Launched(root) {
		answer.Launched = "/" + program
	}
	for _, p := range process.ReadTable(root).Where(canBePlugin) {
		if q, ok := pluginProcess(root, p); ok {
			answer.Processes = append(answer.Processes, q)
		}
	}
	return answer
}

// Launched returns the plugin's programs that a runtime launches, with any index in their names.
func Launched(root string) (found []string) {
	programs, _ := filepath.Glob(files.Below(root, LaunchedDir) + "/*") // fails only for a bad pattern
	for _, program := range programs {
		if launched := filepath.Base(program); launched != PluginName && pluginName(launched) == PluginName {
			found = append(found, LaunchedDir+"/"+launched)
		}
	}
	return found
}

// canBePlugin reports whether a process name can belong to a plugin. The kernel truncates names to 15 characters.
func canBePlugin(comm string) bool {
	return slices.ContainsFunc(slices.AppendSeq(append([]string{PluginName}, Conflicting...), maps.Keys(Injecting)),
		func(name string) bool { return strings.HasPrefix(name, pluginName(comm)) })
}

// pluginName returns the plugin's name for a program's name. If a runtime launches the program, the name begins with
// the plugin's index.
func pluginName(program string) string {
	launched := launchedName.FindStringSubmatch(program)
	switch {
	case launched == nil: // also iproute2's rdma
		return program
	case launched[1] == "rdma":
		return PluginName
	}
	return launched[1]
}

// pluginProcess examines a process. A process in a container counts as a plugin only if NRI's socket is mounted for the
// process, because any program can have a plugin's name.
func pluginProcess(root string, p process.Process) (q PluginProcess, ok bool) {
	if p.Exe == "" || len(p.Args) == 0 {
		return q, false
	}
	name := pluginName(filepath.Base(strings.TrimSuffix(p.Exe, process.Deleted)))
	known := name == PluginName || slices.Contains(Conflicting, name) || Injecting[name] != ""
	if !known || !p.OnNode && !mountsNRI(root, p) {
		return q, false
	}
	q = PluginProcess{Name: name, PID: p.PID, InContainer: !p.OnNode, Started: p.Started(root),
		Replaced: strings.HasSuffix(p.Exe, process.Deleted)}
	if name == PluginName {
		q.Validator = slices.Contains(p.Args, "--validate") || slices.Contains(p.Args, "--validate=true")
		q.Config, q.ConfigError = config(root, p)
		q.Handover = handover(root, p)
	}
	return q, true
}

// mountsNRI reports whether the node's NRI directory is mounted for a process.
func mountsNRI(root string, p process.Process) bool {
	return slices.ContainsFunc(process.Mounts(root, p.PID, nil), func(m *mountinfo.Info) bool {
		return strings.Contains(m.Mountpoint+"/", "/nri/") || strings.HasSuffix(m.Mountpoint, "/nri.sock")
	})
}

// handover returns the node's directory that is mounted at the plugin's --handover path.
func handover(root string, p process.Process) (dir string) {
	for _, m := range process.Mounts(root, p.PID, mountinfo.SingleEntryFilter(p.Flag("--handover"))) {
		dir = m.Root
	}
	return dir
}

// config returns a plugin's configuration file, and what is wrong with the file. The default file can be missing.
func config(root string, p process.Process) (name, problem string) {
	name = p.Flag("--config")
	named := name != ""
	if !named {
		name = policy.ConfigFile
	}
	tree, err := files.Open(p.File(root, "root"))
	if err != nil {
		return "", "" // the process has exited, or access is denied
	}
	defer func() { _ = tree.Close() }() // opened only for reading
	text, err := tree.Read(strings.TrimPrefix(filepath.Clean(name), "/"), largestConfig)
	if !named && errors.Is(err, fs.ErrNotExist) {
		return "", ""
	}
	if err == nil {
		_, err = policy.FromText(text)
	}
	if err != nil {
		return name, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return name, ""
}

// ReadPolicyInForce reads the policy in force.
func ReadPolicyInForce(root string) PolicyInForce {
	p, err := inforce.Read(root)
	switch {
	case err == nil:
		return PolicyInForce{Exists: true, Lives: true, Source: p.Source, Version: p.Version}
	case errors.Is(err, fs.ErrNotExist):
		return PolicyInForce{}
	case errors.Is(err, inforce.ErrEnded):
		return PolicyInForce{Exists: true}
	}
	return PolicyInForce{Exists: true, Error: err.Error()}
}
