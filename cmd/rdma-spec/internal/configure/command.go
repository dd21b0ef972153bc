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

// Options are the flags of all subcommands of `rdma-spec configure`.
type Options struct {
	checks                          []doctor.Check
	config, Root                    string
	dryRun, Restart, Revert, forget bool
	timeout                         time.Duration // of a restart; 0 means the unit's own timeouts
	format                          string
	node                            string // the root of the node itself; tests use a different root

	ledger *change.Ledger      // open while a plan is made and carried out
	found  []containerd.Daemon // nil until they are searched for

	Restarts func(unit string) *Restart // tests replace it
}

// Command is rdma-spec configure, which runs these checks at the end.
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
		Long: `Change the node's configuration for RDMA containers: NRI in containerd or CRI-O, runtime handlers,
the limits of systemd units, and the nri-rdma plugin. With --all, the command turns on NRI, and
installs the plugin as a service if the node has no plugin. The command then lists the faults that
rdma-spec doctor finds. The list omits faults that are fixed by the "next:" steps in the output.
The listed faults do not change the exit status.

The command makes only three kinds of changes: it writes its own files, adds a block of lines to
the end of a file, and adds an element to a file's imports. If these changes are not
sufficient, the command prints the change that you must make. Before the command replaces a file,
it tests whether containerd can load a copy of the new configuration. The command makes a
change only if everything else in containerd's effective configuration stays the same. The command
replaces files atomically, and keeps their mode and owner. If another tool changes a file at the
same time, the command keeps the other tool's change, and fails. If this happens, rerun the
command.

Without --restart, the command does not restart daemons. However, k0s automatically restarts its
containerd when a drop-in file changes. With --restart, the runtime must respond within its unit's
stop and start timeouts, and must list the containers that were running before the restart. If the
runtime does not respond or does not list these containers, or if you press Ctrl-C, the command
restores all files, and restarts the runtime once more.

If an upgrade or another tool has undone some of the changes, rerun the command. The command
restores all lost changes, even those for other features.

--revert reverts the changes from all runs, and keeps changes that other tools or people made. If
somebody has changed one of rdma-spec's own files, the command reports that file, keeps all files
of the same feature, and continues with the other features. If the command replaces an existing
file with its own, it saves the original as FILE.rdma-spec.bak, and --revert restores the original.
--forget deletes a feature's record without changing any file. The record is in
/var/lib/rdma-spec/configure.

The exit status is 0 if the node is configured, 1 if --revert keeps a file because somebody has
changed it, 2 for a usage error, and 3 if the command fails. If the command fails, it changes
nothing. With -o json, "changed" is true if files were changed or, with --dry-run, would be
changed.`,
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
		"restart the daemon; if its containers are not running after the timeout, restore all files")
	cli.AddDurationFlag(f, &o.timeout, "restart-timeout", 0,
		"timeout for a restart (`TIME`); by default, the timeouts of the daemon's unit")
	f.BoolVar(&o.Revert, "revert", false, "revert the change")
	f.BoolVar(&o.forget, "forget", false, "delete the record of the change without changing any file")
	f.StringVar(&o.Root, "root", "/", "change the node whose root directory is this `DIR`")
	cmd.Flags().BoolVar(&all, "all", false, "turn on NRI, and install the plugin as a service")
	addRuntimeFlag(cmd, &runtime)
	service.addFlags(cmd, "program", programUsage)
	o.carriesOut(cmd, "", func(cmd *cobra.Command, _ []string) (configured, error) {
		if !all {
			return configured{}, cli.Usage(errors.New("specify a feature to configure, or use --all"))
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

// withoutKubernetes is the advice for a node without a kubelet.
const withoutKubernetes = "Docker and Podman do not use NRI plugins: to add HCAs to their containers on a node " +
	"without Kubernetes, run rdma-spec configure cdi"

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

// carriesOut makes a command carry out a plan for a feature, or revert the feature. If no feature is named, the command
// reverts all features. If the feature's name ends with a space, the command's argument completes the name.
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

// validate returns an error for flags that cannot be combined, and for a root that does not exist.
func (o *Options) validate() (err error) {
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	info, err := os.Stat(o.Root)
	switch {
	case err != nil || !info.IsDir():
		return fmt.Errorf("--root %s is not a directory: set --root to the directory that contains the node's "+
			"/etc and /usr", o.Root)
	case o.Revert && o.forget:
		return cli.Usage(errors.New("use either --revert or --forget"))
	}
	return nil
}

// validateRestart returns an error for a restart on a different node.
func (o *Options) validateRestart() error {
	if !o.Restart || o.Root == o.node {
		return nil
	}
	return cli.Usage(fmt.Errorf("--restart restarts daemons on this node, but --root %s refers to a different node: omit "+
		"one of the two flags", o.Root))
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
