// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/process"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
)

const (
	pluginName = "nri-rdma"
	// launchedFolder has the plugins that a runtime launches.
	launchedFolder = "opt/nri/plugins"
	// largestConfig bounds a configuration that is read.
	largestConfig = 1 << 20
)

// launchedName is the name of a plugin that a runtime launches: 90-rdma.
var launchedName = regexp.MustCompile(`^[0-9]{2}-(.+)$`)

// Plugin answers which NRI plugins run on the node below a root, and which policy is in force. tool is the version of whoever asks.
func Plugin(root, tool string) doctor.Ask {
	return func(context.Context) (any, error) {
		answer := doctor.Plugin{Tool: tool, Unit: configure.HasUnit(root, pluginName+".service")}
		files, _ := filepath.Glob(filepath.Join(root, launchedFolder, "*")) // a bad pattern is the only error
		for _, file := range files {
			if called, ok := knownPlugin(file); ok && called == pluginName {
				answer.Launched = "/" + launchedFolder + "/" + filepath.Base(file)
			}
		}
		for _, p := range process.List(root, canBePlugin) {
			if q, ok := pluginProcess(root, p); ok {
				answer.Processes = append(answer.Processes, q)
			}
		}
		answer.Policy = policyInForce(root)
		return answer, nil
	}
}

// canBePlugin reports whether a process can be a plugin by its name, of which the kernel keeps 15 characters.
func canBePlugin(comm string) bool {
	if launched := launchedName.FindStringSubmatch(comm); launched != nil {
		comm = launched[1]
	}
	return slices.ContainsFunc(append([]string{pluginName, "rdma"}, doctor.Rivals...), func(name string) bool { return strings.HasPrefix(name, comm) })
}

// knownPlugin returns the name of a plugin by the path of its program, and whether it sets memlock or devices.
func knownPlugin(program string) (name string, known bool) {
	name = filepath.Base(strings.TrimSuffix(program, process.Deleted))
	if launched := launchedName.FindStringSubmatch(name); launched != nil {
		name = launched[1]
		if name == "rdma" {
			name = pluginName
		}
	}
	return name, name == pluginName || slices.Contains(doctor.Rivals, name)
}

// pluginProcess looks at a process. In a container, only what NRI's socket is mounted for is a plugin: anybody can call a program so.
func pluginProcess(root string, p process.Process) (q doctor.PluginProcess, ok bool) {
	if p.Exe == "" || len(p.Args) == 0 {
		return q, false
	}
	name, known := knownPlugin(p.Exe)
	if !known || !p.OnNode && !mountsNRI(root, p) {
		return q, false
	}
	q = doctor.PluginProcess{Name: name, PID: p.PID, InContainer: !p.OnNode, Started: p.Started(root), Replaced: strings.HasSuffix(p.Exe, process.Deleted)}
	if name == pluginName {
		q.Validator = slices.Contains(p.Args, "--validate") || slices.Contains(p.Args, "--validate=true")
		q.Config, q.ConfigError = config(root, p)
	}
	return q, true
}

// mountsNRI reports whether a process sees the node's folder of NRI.
func mountsNRI(root string, p process.Process) bool {
	return slices.ContainsFunc(mounts(root, p.PID, "/nri"), func(m mount) bool { return strings.Contains(m.at+"/", "/nri/") || strings.HasSuffix(m.at, "/nri.sock") })
}

// config returns the configuration file of a plugin, and why it is none. A file that nobody names need not exist.
func config(root string, p process.Process) (name, problem string) {
	name = p.Flag("--config")
	named := name != ""
	if !named {
		name = policy.ConfigFile
	}
	files, err := os.OpenRoot(p.File(root, "root"))
	if err != nil {
		return "", "" // it has ended, or may not be looked at
	}
	defer func() { _ = files.Close() }() // it was only read
	relative := strings.TrimPrefix(filepath.Clean(name), "/")
	info, err := files.Stat(relative)
	if !named && errors.Is(err, fs.ErrNotExist) {
		return "", ""
	}
	var text []byte
	switch {
	case err != nil:
	case info.Size() > largestConfig:
		err = errors.New("it is too large")
	default:
		text, err = files.ReadFile(relative)
	}
	if err == nil {
		_, err = policy.FromText(text)
	}
	if err != nil {
		return name, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return name, ""
}

// policyInForce reads the policy in force.
func policyInForce(root string) doctor.PolicyInForce {
	p, err := inforce.Read(root)
	switch {
	case err == nil:
		return doctor.PolicyInForce{Exists: true, Lives: true, Source: p.Source, Version: p.Version}
	case errors.Is(err, fs.ErrNotExist):
		return doctor.PolicyInForce{}
	case errors.Is(err, inforce.ErrEnded):
		return doctor.PolicyInForce{Exists: true}
	}
	return doctor.PolicyInForce{Exists: true, Error: err.Error()}
}
