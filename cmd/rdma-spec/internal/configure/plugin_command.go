// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
)

const featurePlugin = "plugin"

// ServiceOptions are the flags that say what to install.
type ServiceOptions struct{ Program string }

func (s *ServiceOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.Program, "program", "",
		"the `FILE` of nri-rdma to install; by default the one beside rdma-spec")
}

// file returns the program to install.
func (s ServiceOptions) file() (string, error) {
	if s.Program != "" {
		return s.Program, nil
	}
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), "nri-rdma"), err
}

func newConfigurePluginCommand(o *Options) *cobra.Command {
	var service ServiceOptions
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
			if o.Revert {
				return o.revertFeatures(cmd, featurePlugin)
			}
			return o.carryOut(cmd, func() (configured, error) { return o.plugin(service, launched) })
		},
	}
	cmd.Flags().BoolVar(&launched, "launched", false, "let the runtime launch the plugin")
	service.addFlags(cmd)
	return cmd
}

func (o *Options) plugin(service ServiceOptions, launched bool) (c configured, err error) {
	if o.Restart {
		return c, cli.Usage(errors.New("--restart is for a container runtime: restart the plugin with systemctl restart " +
			"nri-rdma"))
	}
	program, err := service.file()
	if err != nil {
		return c, err
	}
	c.feature, c.next = featurePlugin, []string{"systemctl daemon-reload", "systemctl enable nri-rdma",
		"systemctl restart nri-rdma"}
	if launched {
		c.next = []string{"restart the container runtime"}
		c.plan, err = PluginLaunched(o.Root, program)
		return c, err
	}
	c.plan, err = PluginService(o.Root, program)
	return c, err
}

// configureAll turns NRI on in a runtime and installs the plugin, both or neither.
func (o *Options) configureAll(cmd *cobra.Command, runtime string,
	service ServiceOptions) (both configured, err error) {
	nri, err := o.nri(cmd.Context(), runtime, false)
	if err != nil {
		return both, err
	}
	alone := *o
	alone.Restart = false
	plugin, err := alone.plugin(service, false)
	if err != nil {
		return both, err
	}
	both = configured{feature: "nri and plugin", unit: nri.unit, check: nri.check}
	for _, c := range []configured{plugin, nri} { // the plugin waits for NRI
		for _, f := range c.plan {
			f.Feature = c.feature
			both.plan = append(both.plan, f)
		}
		both.next, both.restart = append(both.next, c.next...), append(both.restart, c.restart...)
	}
	if len(nri.plan.Changed()) == 0 { // NRI is on: nothing to restart the runtime for
		if o.Restart && !o.dryRun {
			notRestarted(cmd.ErrOrStderr(), nri.restart)
		}
		o.Restart, both.unit, both.restart = false, "", nil
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
