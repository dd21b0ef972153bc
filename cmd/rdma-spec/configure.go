// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/containerd"
)

// configureOptions are the flags that all subcommands of `rdma-spec configure` have.
type configureOptions struct {
	config, root            string
	dryRun, restart, revert bool

	restarts func(unit string) *configure.Restart // tests replace it
}

func newConfigureCommand() *cobra.Command {
	o := &configureOptions{restarts: nodeRestart}
	var all bool
	var runtime string
	var service serviceOptions
	cmd := &cobra.Command{
		Use:   "configure",
		Short: "Set a node up for RDMA containers, and put it back",
		Long: `Change the files of a node that decide whether RDMA containers work: NRI in containerd or CRI-O,
runtime handlers, the limits of units, and the plugin nri-rdma. With --all, turn NRI on, install
the plugin as a service, and list the faults that rdma-spec doctor finds beside what the next
steps settle. These faults do not change the exit status.

A change keeps every byte of a file outside its own lines. containerd loads a copy of the new
configuration before a file is replaced, and the change is made only if it affects nothing else
in containerd's effective configuration. Files are replaced atomically, and keep mode and owner.

No daemon is restarted without --restart. With it, the runtime must answer within 30 seconds and
list the containers that ran before. Otherwise all files are put back, and the daemon is
restarted once more.

--revert puts back exactly what was there, also after several runs. If somebody has changed a
file since, it refuses and prints that change. configure keeps the former files in
/var/lib/rdma-spec/configure.

The exit status is 0 if the node is configured, 1 if --revert is refused, 2 for a wrong call, and
3 if something fails; then nothing is changed.`,
		Example: `  rdma-spec configure --all --dry-run
  rdma-spec configure --all --restart
  rdma-spec configure --revert`,
		GroupID: groupConfiguration,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.revert:
				return o.takeBack(cmd)
			case all:
				return o.configureAll(cmd, runtime, service)
			}
			return usageError{errors.New("name what to configure, or use --all")}
		},
	}
	f := cmd.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&o.config, "config", "", "the containerd configuration `FILE` to change, where the node has several")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
	f.BoolVar(&o.restart, "restart", false, "restart the daemon, and put everything back if its containers are not there after 30 s")
	f.BoolVar(&o.revert, "revert", false, "put back what was there before")
	f.StringVar(&o.root, "root", "/", "change the node below this `DIR`")
	cmd.Flags().BoolVar(&all, "all", false, "turn NRI on, and install the plugin as a service")
	addRuntimeFlag(cmd, &runtime)
	service.addFlags(cmd)
	cmd.AddCommand(newConfigureNRICommand(o), newConfigureHandlerCommand(o), newConfigureLimitsCommand(o), newConfigurePluginCommand(o), newConfigureCDICommand(o))
	return cmd
}

// configured is what a subcommand plans.
type configured struct {
	feature string
	plan    change.Plan
	unit    string                                // to restart
	check   func() error                          // of the files as they are on the node; nil for none
	next    []string                              // what to do next, whether or not the daemon is restarted
	restart []string                              // what to do next without --restart
	report  func(w io.Writer, changed bool) error // prints more; nil for nothing
}

// carryOut prints or makes a change.
func (o *configureOptions) carryOut(cmd *cobra.Command, c configured) error {
	diff, err := c.plan.Diff()
	if err != nil {
		return err
	}
	stdout := cmd.OutOrStdout()
	switch {
	case o.dryRun:
		_, err = io.WriteString(stdout, diff)
		return err
	case diff == "":
		if _, err := fmt.Fprintf(stdout, "%s: nothing to change\n", c.feature); err != nil {
			return err
		}
		if o.restart {
			notRestarted(cmd.ErrOrStderr(), c.restart)
		}
	default:
		if c.plan, err = c.plan.Changed(); err != nil {
			return err
		}
		if err := o.apply(cmd.Context(), c); err != nil {
			return err
		}
		for _, f := range c.plan {
			if _, err := fmt.Fprintln(stdout, "wrote", f.Path); err != nil {
				return err
			}
		}
		if !o.restart {
			c.next = append(c.next, c.restart...)
		}
		for _, line := range c.next {
			fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: next:", line)
		}
	}
	if c.report != nil {
		return c.report(stdout, diff != "")
	}
	return nil
}

func (o *configureOptions) apply(ctx context.Context, c configured) error {
	ledger, err := change.Open(o.root)
	if err != nil {
		return err
	}
	defer ledger.Close()
	return o.withRestart(ctx, c.unit, c.check, func(check func() error) error { return ledger.Apply(c.feature, c.plan, check) })
}

// withRestart makes a change that ends with a check and, where the flag says so, with a restart.
func (o *configureOptions) withRestart(ctx context.Context, unit string, check func() error, makeChange func(check func() error) error) error {
	if !o.restart {
		return makeChange(check)
	}
	if unit == "" {
		return errUnitUnknown
	}
	restart := o.restarts(unit)
	if err := restart.Prepare(ctx); err != nil {
		return err
	}
	err := makeChange(func() error {
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		return restart.Do(ctx)
	})
	if err != nil {
		return restart.Undone(ctx, err)
	}
	return nil
}

// takeBack reverts features, all where none is named.
func (o *configureOptions) takeBack(cmd *cobra.Command, features ...string) error {
	stdout := cmd.OutOrStdout()
	ledger, err := change.Read(o.root)
	if err != nil {
		return err
	}
	if len(features) == 0 {
		features = ledger.Features()
	}
	back, err := ledger.Reversal(features...)
	var changed *change.Changed
	if errors.As(err, &changed) {
		if _, err := io.WriteString(stdout, changed.Diff); err != nil {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec:", err)
		return errProblemFound
	}
	switch {
	case err != nil:
		return err
	case o.dryRun:
		_, err = io.WriteString(stdout, back.Diff)
		return err
	case back.Empty():
		_, err = fmt.Fprintln(stdout, "nothing to put back")
		return err
	}
	if err := configure.PluginDisabled(o.root, back.Paths()); err != nil {
		return err
	}
	unit := ""
	if o.restart {
		if unit, err = o.unit(back.Paths()); err != nil {
			return err
		}
	}
	if ledger, err = change.Open(o.root); err != nil {
		return err
	}
	defer ledger.Close()
	revert := func(check func() error) error { return ledger.Revert(check, features...) }
	if unit == "" && o.restart { // no daemon reads the files
		err = revert(nil)
	} else {
		err = o.withRestart(cmd.Context(), unit, nil, revert)
	}
	if err != nil {
		return err
	}
	for _, path := range back.Paths() {
		if _, err := fmt.Fprintln(stdout, "put back", path); err != nil {
			return err
		}
	}
	if !o.restart {
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: next: restart the daemon that reads these files")
	}
	return nil
}

// daemon returns the containerd whose files are changed.
func (o *configureOptions) daemon() (containerd.Daemon, error) {
	return containerd.Choose(containerd.Find(o.root), o.config)
}

// activeUnit returns the unit that runs a containerd; empty where it is unknown.
func activeUnit(root string, d containerd.Daemon) string {
	for _, unit := range d.Units {
		if configure.HasUnit(root, unit) {
			return unit
		}
	}
	return ""
}
