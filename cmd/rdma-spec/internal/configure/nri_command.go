// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

// The runtimes that --runtime names.
const (
	RuntimeContainerd = "containerd"
	runtimeCRIO       = "crio"
)

var crioUnit = places.CRIO.Units[0]

func newConfigureNRICommand(o *Options) *cobra.Command {
	var required bool
	var which string
	cmd := &cobra.Command{
		Use:   "nri",
		Short: "Turn on NRI in containerd or CRI-O",
		Long: `Turn on NRI, so that plugins such as nri-rdma can adjust containers. NRI requires containerd 1.7.7
or later, or CRI-O. If NRI is already on, the command changes nothing.

The command writes its own file to a directory that the configuration imports or that the platform
reads. If no such directory exists, the command writes the file to rdma-spec.d, and adds this
directory to the configuration's imports. If a K3s or RKE2 template includes the base template, the
command adds a block to the end of the template.

With --required, the command also turns on NRI's default validator, so that a pod can use the
required-plugins.noderesource.dev annotation to require a plugin. The validator requires containerd
2.2 or later. The command does not change the validator's own list of required plugins, which
applies to all containers on the node.`,
		Example: `  rdma-spec configure nri --dry-run
  rdma-spec configure nri --required --restart
  rdma-spec configure nri --runtime crio
  rdma-spec configure nri --revert`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&required, "required", false, "turn on the default validator, so that a pod can require a plugin")
	addRuntimeFlag(cmd, &which)
	return o.carriesOut(cmd, goal.NRI, func(cmd *cobra.Command, _ []string) (configured, error) {
		return o.nri(cmd.Context(), which, required)
	})
}

func addRuntimeFlag(cmd *cobra.Command, runtime *string) {
	cmd.Flags().StringVar(runtime, "runtime", "", "the `RUNTIME`: containerd or crio; by default, the runtime that "+
		"the kubelet uses")
	cli.Complete(cmd, "runtime", func(string) []string { return []string{RuntimeContainerd, runtimeCRIO} })
}

// nri plans NRI in a runtime. "" means the runtime that the kubelet uses.
func (o *Options) nri(ctx context.Context, which string, required bool) (configured, error) {
	c := configured{goals: []record.Goal{{Feature: goal.NRI}}}
	name, known := map[string]string{"": "", RuntimeContainerd: runtime.NameContainerd,
		runtimeCRIO: runtime.NameCRIO}[which]
	if !known {
		return c, cli.Usage(fmt.Errorf("--runtime %s is not supported: use containerd or crio", which))
	}
	daemon, isCRIO, err := runtime.Choose(ctx, o.containerds(), o.Root, name, o.config)
	switch {
	case err != nil:
		return c, err
	case isCRIO && required:
		return c, cli.Usage(errors.New("--required applies only to containerd: in CRI-O 1.34 and later, set " +
			"nri_enable_default_validator = true in the [crio.nri.default_validator] section of CRI-O's configuration"))
	case isCRIO:
		c.plan, err = CRIONRI(ctx, o.Root)
		c.unit = crioUnit
		c.restart = restartNext(crioUnit)
		return c, err
	}
	asked := record.Goal{Feature: goal.NRI}
	if required {
		asked.Asked = map[string]string{goal.Required: "true"}
	}
	edit, err := o.edit(ctx, &c, daemon, asked)
	if err == nil {
		c.plan, err = edit.NRI(ctx)
	}
	c.check = func() error { return daemon.Check(ctx) }
	c.unit = Unit(o.Root, daemon)
	c.restart = c.restartNext(daemon)
	return c, err
}

// restartNext returns the steps that restart a containerd that reads the planned files.
func (c configured) restartNext(d containerd.Daemon) []string {
	for _, f := range c.plan.Changed() {
		if restartsItself(d, f.Path) {
			return []string{itself}
		}
	}
	return restartNext(c.unit)
}

// itself is the step after a change for which k0s restarts containerd.
const itself = "wait until k0s has restarted containerd"

// restartsItself reports whether a running k0s restarts its containerd after a change of a file.
func restartsItself(d containerd.Daemon, path string) bool {
	return d.DropIns != "" && d.DropIns == filepath.Dir(path) && d.Process.PID > 0
}

// restartNext returns the steps that restart a unit.
func restartNext(unit string) []string {
	if unit == "" {
		return []string{"restart the container runtime"}
	}
	return []string{"systemctl restart " + unit}
}
