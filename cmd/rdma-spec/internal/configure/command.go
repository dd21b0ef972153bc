// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
)

// Options are the flags that all subcommands of `rdma-spec configure` have.
type Options struct {
	checks                          []doctor.Check
	config, Root                    string
	dryRun, Restart, Revert, forget bool
	timeout                         time.Duration // of a restart; 0 is the unit's own
	format                          string
	node                            string // the root of the node itself; tests have another one

	ledger *change.Ledger      // open while a plan is made and carried out
	found  []containerd.Daemon // nil before they are looked for

	Restarts func(unit string) *Restart // tests replace it
}

// Command is rdma-spec configure, which ends with these checks.
func Command(checks []doctor.Check) *cobra.Command {
	o := &Options{checks: checks, node: "/"}
	o.Restarts = o.nodeRestart
	return o.command()
}

func (o *Options) command() *cobra.Command {
	var all bool
	var runtime string
	var service programs
	cmd := &cobra.Command{
		Use:   "configure",
		Short: "Configure a node for RDMA containers, or revert the configuration",
		Long: `Change the node's files that RDMA containers depend on: NRI in containerd or CRI-O, runtime
handlers, the limits of units, and the plugin nri-rdma. With --all, turn on NRI, install
the plugin as a service if the node has none, and list the faults that rdma-spec doctor finds,
except those that the steps after "next:" in the output fix. These faults do not change the exit
status.

The command makes only these changes: it writes its own files, adds one block of lines at the end
of a file, and adds one element to the imports of a file. If these changes do not suffice, it
prints the change for you to make. Before the command replaces a file, it tests the new
configuration: containerd loads a copy of it. The command makes the change only if the change
affects nothing else in containerd's effective configuration. It replaces files atomically, and
keeps their mode and owner. If another tool changes a file at the same time, the other tool's
change stays, and the command fails. In that case, rerun the command.

Without --restart, the command does not restart a daemon, but k0s itself restarts its containerd.
With --restart, the runtime must respond within the time that its unit allows for a stop and a
start, and must list the containers that were running before. Otherwise, and on Ctrl-C, the command
restores all files, and restarts the daemon once more.

If you rerun the command, it restores what an upgrade or another tool has removed, including the
changes for other features.

--revert reverts the changes, even if several runs made them, and keeps the changes of others. If
somebody has changed one of rdma-spec's own files, the command keeps that file and all other files
of the same feature, reports the file, and continues with the other features. If a file with the
same name existed before, it is kept as FILE.rdma-spec.bak in the same directory. --forget drops
the record of a feature, and changes no file. The record is in /var/lib/rdma-spec/configure.

The exit status is 0 if the node is configured, 1 if --revert keeps a file because somebody has
changed it, 2 for a usage error, and 3 if something fails, in which case nothing is changed. With
-o json, "changed" shows whether files were changed or, with --dry-run, would be.`,
		Example: `  rdma-spec configure --all --dry-run
  rdma-spec configure --all --restart
  rdma-spec configure --revert`,
		GroupID: cli.GroupConfiguration,
		Args:    cobra.NoArgs,
	}
	f := cmd.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&o.config, "config", "", "the containerd configuration `FILE` to change, if the node has several")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff, without making it")
	f.BoolVar(&o.Restart, "restart", false,
		"restart the daemon, and restore all files if its containers are not running again in time")
	cli.AddDurationFlag(f, &o.timeout, "restart-timeout", 0,
		"timeout for a restart (`TIME`); by default, the timeouts of the daemon's unit")
	f.BoolVar(&o.Revert, "revert", false, "revert the change")
	f.BoolVar(&o.forget, "forget", false, "drop the record of the change, and leave the files as they are")
	f.StringVar(&o.Root, "root", "/", "change the node whose root directory is this `DIR`")
	cmd.Flags().BoolVar(&all, "all", false, "turn on NRI, and install the plugin as a service")
	addRuntimeFlag(cmd, &runtime)
	service.addFlags(cmd, "program", "install this `FILE` as nri-rdma; by default, nri-rdma in the directory of rdma-spec")
	o.carriesOut(cmd, "", func(cmd *cobra.Command, _ []string) (configured, error) {
		if !all {
			return configured{}, cli.Usage(errors.New("name what to configure, or use --all"))
		}
		c, err := o.configureAll(cmd, runtime, service)
		if runsKubernetes(o.Root) {
			return c, err
		}
		if err != nil {
			return c, fmt.Errorf("%w; %s", err, withoutKubernetes)
		}
		if anyOf(o.Root, "usr/bin/docker", "usr/bin/podman") {
			fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec:", withoutKubernetes)
		}
		return c, nil
	})
	cmd.AddCommand(newConfigureNRICommand(o), newConfigureHandlerCommand(o), newConfigureLimitsCommand(o),
		newConfigurePluginCommand(o), newConfigureCDICommand(o))
	return cmd
}

// withoutKubernetes is what to do on a node that has no kubelet.
const withoutKubernetes = "Docker and Podman do not use NRI plugins when they run without Kubernetes: for their " +
	"containers, run rdma-spec configure cdi"

// runsKubernetes reports whether a kubelet has ever run on the node: each distribution's has a directory.
func runsKubernetes(root string) bool {
	return anyOf(root, "var/lib/kubelet", "var/lib/rancher", "var/lib/k0s", "var/snap/microk8s")
}

// anyOf reports whether the node has one of these files.
func anyOf(root string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	})
}

// carriesOut has a command carry a plan out for a feature, or take it back: all features where none is named. An
// argument of the command is a part of the name where the feature's ends with a space.
func (o *Options) carriesOut(cmd *cobra.Command, feature string,
	plan func(cmd *cobra.Command, args []string) (configured, error)) *cobra.Command {
	format := cli.AddFormatFlag(cmd, cli.FormatText, cli.FormatJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.format = format.Format
		if err := o.validate(); err != nil {
			return err
		}
		if !o.Revert && !o.forget {
			return o.carryOut(cmd, func() (c configured, err error) {
				if c, err = plan(cmd, args); err == nil {
					err = o.validateRestart()
				}
				return c, err
			})
		}
		if err := o.validateRestart(); err != nil {
			return err
		}
		features := []string{feature}
		if strings.HasSuffix(feature, " ") {
			features[0] += args[0]
		}
		return o.revertFeatures(cmd, slices.DeleteFunc(features, func(f string) bool { return f == "" })...)
	}
	return cmd
}

// validate reports flags that do not go together, and a root that is not there.
func (o *Options) validate() (err error) {
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	info, err := os.Stat(o.Root)
	switch {
	case err != nil || !info.IsDir():
		return fmt.Errorf("--root %s is not a directory: set it to the directory that contains the node's /etc "+
			"and /usr", o.Root)
	case o.Revert && o.forget:
		return cli.Usage(errors.New("use either --revert or --forget"))
	}
	return nil
}

// validateRestart reports a restart of another node than this one.
func (o *Options) validateRestart() error {
	if !o.Restart || o.Root == o.node {
		return nil
	}
	return cli.Usage(fmt.Errorf("--restart restarts daemons on this node, but --root %s refers to a different node: omit "+
		"one of the flags",
		o.Root))
}

// containerds returns the containerds of the node.
func (o *Options) containerds() []containerd.Daemon {
	if o.found == nil {
		o.found = containerd.Find(o.Root)
	}
	return o.found
}

// daemon returns the containerd whose files are changed.
func (o *Options) daemon(ctx context.Context) (d containerd.Daemon, err error) {
	d, _, err = runtime.Choose(ctx, o.containerds(), o.Root, runtime.NameContainerd, o.config)
	return d, err
}
