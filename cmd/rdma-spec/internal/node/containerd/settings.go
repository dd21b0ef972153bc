// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
)

// Settings are what RDMA containers depend on in an effective configuration.
type Settings struct {
	Socket         string // of containerd's own API and CRI; "" where it is the default
	CRIDisabled    bool
	DefaultHandler string
	Handlers       []Setting

	CDIOff     bool     // CRI leaves CDI devices out
	CDIFolders []string // where it looks for CDI files; empty where it does not say

	NRIOff                              string // the setting that turns NRI off; "" where it is on
	NRISocket                           string
	RegistrationTimeout, RequestTimeout time.Duration // 0 where they are not said
	Validator                           bool
	Required                            []string
}

// Setting is a runtime handler.
type Setting struct {
	Name, BaseSpec string
	Program        string // of the OCI runtime: a path, or a name to look up
}

// NotRun is the error where the program could not be asked, which says nothing about the configuration.
type NotRun struct{ error }

// Settings returns what the installed program makes of the configuration. The error is NotRun, or why it cannot be
// loaded.
func (d Daemon) Settings(ctx context.Context) (Settings, error) {
	if d.Program == nil {
		return Settings{}, NotRun{fmt.Errorf("no program of %s was found", d.Name)}
	}
	tree, err := d.Effective(ctx, Contents{})
	exit, reason := new(exec.ExitError), syscall.Errno(0)
	switch {
	case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &exit) ||
		errors.As(err, &reason)):
		return Settings{}, NotRun{err}
	case err != nil:
		return Settings{}, err
	}
	return SettingsOf(tree), nil
}

// Loads reports whether the daemon's configuration is a file, or what the platform renders as that file.
func (d Daemon) Loads(file string) bool { return file == d.File || file == rendered(d) }

// SettingsOf reads an effective configuration.
func SettingsOf(tree map[string]any) Settings {
	s := Settings{Socket: cmp.Or(lookup[string](tree, "grpc", "address"), lookup[string](tree, "plugins",
		"io.containerd.server.v1.grpc", "address"))}
	disabled := texts(tree["disabled_plugins"])
	s.CRIDisabled = slices.ContainsFunc(CRIPlugins, func(name string) bool { return slices.Contains(disabled, name) })
	plugin, all := Handlers(tree)
	s.DefaultHandler = lookup[string](tree, "plugins", plugin, "containerd", "default_runtime_name")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		handler, _ := all[name].(map[string]any) // containerd prints a table
		program := lookup[string](handler, "options", "BinaryName")
		if program == "" && lookup[string](handler, "runtime_type") == "io.containerd.runc.v2" {
			program = "runc"
		}
		s.Handlers = append(s.Handlers, Setting{Name: name, BaseSpec: lookup[string](handler, BaseSpecKey), Program: program})
	}
	for _, cri := range CRIPlugins {
		on, says := tomledit.Lookup(tree, "plugins", cri, "enable_cdi")
		folders, _ := tomledit.Lookup(tree, "plugins", cri, "cdi_spec_dirs")
		s.CDIOff = s.CDIOff || says && on == false
		s.CDIFolders = append(s.CDIFolders, texts(folders)...)
	}
	nri, there := tomledit.Lookup(tree, "plugins", NRIPlugin)
	table, _ := nri.(map[string]any) // containerd prints a table
	s.NRISocket = lookup[string](table, "socket_path")
	s.RegistrationTimeout = duration(lookup[string](table, "plugin_registration_timeout"))
	s.RequestTimeout = duration(lookup[string](table, "plugin_request_timeout"))
	s.Validator = lookup[bool](table, "default_validator", "enable")
	required, _ := tomledit.Lookup(table, "default_validator", "required_plugins")
	s.Required = texts(required)
	switch {
	case !there:
		s.NRIOff = "this containerd has no NRI"
	case slices.Contains(disabled, NRIPlugin) || slices.Contains(disabled, "nri"):
		s.NRIOff = "disabled_plugins has it"
	case lookup[bool](table, "disable"):
		s.NRIOff = "disable = true"
	case lookup[bool](table, "disable_connections"):
		s.NRIOff = "disable_connections = true"
	}
	return s
}

// lookup returns a value of a tree, the zero value where there is none of that type.
func lookup[T any](tree map[string]any, path ...string) T {
	found, _ := tomledit.Lookup(tree, path...)
	value, _ := found.(T)
	return value
}

// texts returns the texts of a list.
func texts(list any) (all []string) {
	elements, _ := list.([]any) // containerd prints a list
	for _, e := range elements {
		if text, ok := e.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// duration reads a duration, 0 where there is none.
func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text) // containerd prints one
	return d
}

// CRIPlugins are the names of the plugin that knows runtime handlers, the newest one first.
var CRIPlugins = []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"}

// BaseSpecKey is the key of a handler that names its base spec.
const BaseSpecKey = "base_runtime_spec"

// Handlers returns the handlers of an effective configuration, and the plugin that has them.
func Handlers(tree map[string]any) (plugin string, all map[string]any) {
	for _, plugin := range CRIPlugins {
		if found, exists := tomledit.Lookup(tree, "plugins", plugin, "containerd", "runtimes"); exists {
			all, _ = found.(map[string]any) // containerd prints a table
			return plugin, all
		}
	}
	return "", nil
}

// NRIPlugin is the name of containerd's plugin for NRI.
const NRIPlugin = "io.containerd.nri.v1.nri"
