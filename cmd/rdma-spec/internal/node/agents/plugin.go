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
	// LaunchedDir has the plugins that a runtime launches.
	LaunchedDir = "opt/nri/plugins"
	// largestConfig bounds a configuration that is read.
	largestConfig = 1 << 20
)

// launchedName is the name of a plugin that a runtime launches: 90-rdma.
var launchedName = regexp.MustCompile(`^[0-9]{2}-(.+)$`)

// ReadPlugin answers which NRI plugins run on the node below a root, and which policy is in force. tool is the version
// of whoever asks.
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

// Launched returns the programs of the plugin that a runtime launches, under any index.
func Launched(root string) (found []string) {
	programs, _ := filepath.Glob(files.Below(root, LaunchedDir) + "/*") // a bad pattern is the only error
	for _, program := range programs {
		if launched := filepath.Base(program); launched != PluginName && pluginName(launched) == PluginName {
			found = append(found, LaunchedDir+"/"+launched)
		}
	}
	return found
}

// canBePlugin reports whether a process can be a plugin by its name, of which the kernel keeps 15 characters.
func canBePlugin(comm string) bool {
	return slices.ContainsFunc(slices.AppendSeq(append([]string{PluginName}, Conflicting...), maps.Keys(Injecting)),
		func(name string) bool { return strings.HasPrefix(name, pluginName(comm)) })
}

// pluginName returns the name of a plugin by that of its program, which says when a runtime calls it if it launches it.
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

// pluginProcess looks at a process. In a container, only what NRI's socket is mounted for is a plugin: anybody can call
// a program so.
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

// mountsNRI reports whether a process sees the node's directory of NRI.
func mountsNRI(root string, p process.Process) bool {
	return slices.ContainsFunc(process.Mounts(root, p.PID, nil), func(m *mountinfo.Info) bool {
		return strings.Contains(m.Mountpoint+"/", "/nri/") || strings.HasSuffix(m.Mountpoint, "/nri.sock")
	})
}

// handover returns the directory of the node that is mounted where a plugin meets the one that replaces it.
func handover(root string, p process.Process) (dir string) {
	for _, m := range process.Mounts(root, p.PID, mountinfo.SingleEntryFilter(p.Flag("--handover"))) {
		dir = m.Root
	}
	return dir
}

// config returns the configuration file of a plugin, and why it is none. A file that nobody names need not exist.
func config(root string, p process.Process) (name, problem string) {
	name = p.Flag("--config")
	named := name != ""
	if !named {
		name = policy.ConfigFile
	}
	tree, err := files.Open(p.File(root, "root"))
	if err != nil {
		return "", "" // it has ended, or may not be looked at
	}
	defer func() { _ = tree.Close() }() // it was only read
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
