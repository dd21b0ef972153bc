// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
)

const featurePlugin = "plugin"

// serviceOptions are the flags that say what to install.
type serviceOptions struct{ program string }

func (s *serviceOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.program, "program", "", "the `FILE` of nri-rdma to install; by default the one beside rdma-spec")
}

// file returns the program to install.
func (s serviceOptions) file() (string, error) {
	if s.program != "" {
		return s.program, nil
	}
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), "nri-rdma"), err
}

func newConfigurePluginCommand(o *configureOptions) *cobra.Command {
	var service serviceOptions
	var launched bool
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Install the plugin nri-rdma as a service, or for the runtime to launch",
		Long: `Install nri-rdma as a systemd service: the program in /usr/local/bin and its unit. With --launched,
install it in /opt/nri/plugins, where the runtime launches it: then it is there before the first
container of the node, and comes back only when the runtime restarts. Where the plugin has no
configuration, write /etc/rdma-spec/config.yaml with the defaults.`,
		Example: `  rdma-spec configure plugin
  rdma-spec configure plugin --launched
  rdma-spec configure plugin --revert`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.revert {
				return o.takeBack(cmd, featurePlugin)
			}
			c, err := o.plugin(service, launched)
			if err != nil {
				return err
			}
			return o.carryOut(cmd, c)
		},
	}
	cmd.Flags().BoolVar(&launched, "launched", false, "let the runtime launch the plugin")
	service.addFlags(cmd)
	return cmd
}

func (o *configureOptions) plugin(service serviceOptions, launched bool) (c configured, err error) {
	if o.restart {
		return c, usageError{errors.New("--restart is for a container runtime: restart the plugin with systemctl restart nri-rdma")}
	}
	program, err := service.file()
	if err != nil {
		return c, err
	}
	c.feature, c.next = featurePlugin, []string{"systemctl daemon-reload", "systemctl enable nri-rdma", "systemctl restart nri-rdma"}
	if launched {
		c.next = []string{"restart the container runtime"}
		c.plan, err = configure.PluginLaunched(o.root, program)
		return c, err
	}
	c.plan, err = configure.PluginService(o.root, program)
	return c, err
}

// configureAll turns NRI on in a runtime and installs the plugin, both or neither.
func (o *configureOptions) configureAll(cmd *cobra.Command, runtime string, service serviceOptions) error {
	nri, err := o.nri(cmd.Context(), runtime, false)
	if err != nil {
		return err
	}
	alone := *o
	alone.restart = false
	plugin, err := alone.plugin(service, false)
	if err != nil {
		return err
	}
	both := configured{feature: "nri and plugin", unit: nri.unit, check: nri.check}
	for _, c := range []configured{plugin, nri} { // the plugin waits for NRI
		for _, f := range c.plan {
			both.plan = append(both.plan, change.File{Feature: c.feature, Path: f.Path, Content: f.Content, Mode: f.Mode})
		}
		both.next, both.restart = append(both.next, c.next...), append(both.restart, c.restart...)
	}
	changed, err := nri.plan.Changed()
	if err != nil {
		return err
	}
	if len(changed) == 0 { // NRI is on: nothing to restart the runtime for
		if o.restart && !o.dryRun {
			notRestarted(cmd.ErrOrStderr(), nri.restart)
		}
		o.restart, both.unit, both.restart = false, "", nil
	}
	both.report = func(w io.Writer, changed bool) error {
		var settled []string
		if changed {
			settled = settledByStart
			if !o.restart && len(both.restart) > 0 {
				settled = slices.Concat(settled, settledByRestart)
			}
		}
		return o.examine(cmd.Context(), w, cmd.ErrOrStderr(), settled)
	}
	return o.carryOut(cmd, both)
}
