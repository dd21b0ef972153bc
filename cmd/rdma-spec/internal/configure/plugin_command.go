// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
)

const featurePlugin = "plugin"

// programUsage is the description of the flag for the plugin's program.
const programUsage = "install this `FILE` as nri-rdma; by default, nri-rdma in the same directory as rdma-spec"

func newConfigurePluginCommand(o *Options) *cobra.Command {
	var service programs
	var launched bool
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Install the nri-rdma plugin as a service or as a program that the runtime launches",
		Long: `Install the nri-rdma program in /usr/local/bin, and a systemd unit that runs it as a service. With
--launched, the command installs the program in /opt/nri/plugins instead, and the runtime launches
the plugin. In this case, the plugin starts before the node's first container. However, if the
plugin exits, the runtime relaunches it only when the runtime itself restarts. If the plugin has no
configuration, the command writes /etc/rdma-spec/config.yaml with the defaults.

A node can have only one nri-rdma plugin. If the plugin is already installed in another way (from
a package, as a DaemonSet or a service, or launched by the runtime), the command fails and changes
nothing.`,
		Example: `  rdma-spec configure plugin
  rdma-spec configure plugin --launched
  rdma-spec configure plugin --revert`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&launched, "launched", false, "let the runtime launch the plugin")
	service.addFlags(cmd, "program", programUsage)
	return o.carriesOut(cmd, featurePlugin, func(*cobra.Command, []string) (configured, error) {
		if o.Restart {
			return configured{}, cli.Usage(errors.New("--restart applies only to container runtimes: restart the plugin with " +
				"systemctl restart nri-rdma"))
		}
		return o.plugin(service, launched)
	})
}

func (o *Options) plugin(service programs, launched bool) (c configured, err error) {
	c.goals = []record.Goal{{Feature: featurePlugin}}
	c.next = []string{"systemctl daemon-reload", "systemctl enable nri-rdma", "systemctl restart nri-rdma"}
	if launched {
		c.next = []string{"restart the container runtime"}
	}
	c.plan, err = service.Plugin(o.Root, launched)
	return c, err
}

// configureAll turns on NRI in a runtime and installs the plugin: both or neither. A plugin that is already installed
// in a different way is kept.
func (o *Options) configureAll(cmd *cobra.Command, runtime string, service programs) (both configured, err error) {
	nri, err := o.nri(cmd.Context(), runtime, false)
	if err != nil {
		return both, err
	}
	plugin, err := o.plugin(service, false)
	if errors.Is(err, errOther) {
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: did not install the plugin:", err)
		plugin = configured{}
		err = nil
	}
	if err != nil {
		return both, err
	}
	both = configured{unit: nri.unit, check: nri.check}
	for _, c := range []configured{plugin, nri} { // the plugin waits for NRI
		both.goals = append(both.goals, c.goals...)
		for _, f := range c.plan {
			f.Feature = c.goals[0].Feature
			both.plan = append(both.plan, f)
		}
		both.next = append(both.next, c.next...)
		both.restart = append(both.restart, c.restart...)
	}
	if len(nri.plan.Changed()) == 0 { // NRI is already on, so the runtime needs no restart
		if o.Restart && !o.dryRun {
			notRestarted(cmd.ErrOrStderr(), nri.restart)
		}
		o.Restart = false
		both.unit = ""
		both.restart = nil
	}
	both.report = func(w io.Writer, changed bool) error {
		var settled []string
		if changed {
			settled = settledByStart
			if !o.Restart && len(both.restart) > 0 {
				settled = slices.Concat(settled, settledByRestart)
			}
		}
		return o.examine(cmd.Context(), w, cmd.ErrOrStderr(), settled)
	}
	return both, nil
}
