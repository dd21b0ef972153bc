// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
)

// Options are the flags that all subcommands of `rdma-spec configure` have.
type Options struct {
	checks                  []doctor.Check
	config, Root            string
	dryRun, Restart, Revert bool

	Restarts func(unit string) *Restart // tests replace it
}

// Command is rdma-spec configure, which ends with these checks.
func Command(checks []doctor.Check) *cobra.Command {
	o := &Options{checks: checks, Restarts: nodeRestart}
	var all bool
	var runtime string
	var service ServiceOptions
	cmd := &cobra.Command{
		Use:   "configure",
		Short: "Set a node up for RDMA containers, and put it back",
		Long: `Change the files of a node that decide whether RDMA containers work: NRI in containerd or CRI-O,
runtime handlers, the limits of units, and the plugin nri-rdma. With --all, turn NRI on, install
the plugin as a service, and list the faults that rdma-spec doctor finds beside what the next
steps settle. These faults do not change the exit status.

A change keeps every byte of a file outside its own lines. containerd loads a copy of the new
configuration before a file is replaced, and the change is made only if it affects nothing else
in containerd's effective configuration. Files are replaced atomically, and keep mode and owner. If
another tool changes one of them meanwhile, its change stays, and configure fails: run it again.

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
		GroupID: cli.GroupConfiguration,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Revert:
				return o.revertFeatures(cmd)
			case all:
				return o.carryOut(cmd, func() (configured, error) { return o.configureAll(cmd, runtime, service) })
			}
			return cli.Usage(errors.New("name what to configure, or use --all"))
		},
	}
	f := cmd.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&o.config, "config", "", "the containerd configuration `FILE` to change, where the node has several")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
	f.BoolVar(&o.Restart, "restart", false,
		"restart the daemon, and put everything back if its containers are not there after 30 s")
	f.BoolVar(&o.Revert, "revert", false, "put back what was there before")
	f.StringVar(&o.Root, "root", "/", "change the node below this `DIR`")
	cmd.Flags().BoolVar(&all, "all", false, "turn NRI on, and install the plugin as a service")
	addRuntimeFlag(cmd, &runtime)
	service.addFlags(cmd)
	cmd.AddCommand(newConfigureNRICommand(o), newConfigureHandlerCommand(o), newConfigureLimitsCommand(o),
		newConfigurePluginCommand(o), newConfigureCDICommand(o))
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

// carryOut makes a plan, and prints or carries it out. No other configure plans or changes anything meanwhile.
func (o *Options) carryOut(cmd *cobra.Command, plan func() (configured, error)) error {
	var ledger *change.Ledger
	var err error
	if !o.dryRun {
		if ledger, err = change.Open(o.Root); err != nil {
			return err
		}
		defer ledger.Close()
	}
	c, err := plan()
	if err != nil {
		return err
	}
	stdout := cmd.OutOrStdout()
	changed := c.plan.Changed()
	switch {
	case o.dryRun:
		_, err = io.WriteString(stdout, c.plan.Diff())
		return err
	case len(changed) == 0:
		if _, err := fmt.Fprintf(stdout, "%s: nothing to change\n", c.feature); err != nil {
			return err
		}
		if o.Restart {
			notRestarted(cmd.ErrOrStderr(), c.restart)
		}
	default:
		if err := o.apply(cmd.Context(), ledger, c); err != nil {
			return err
		}
		for _, f := range changed {
			if _, err := fmt.Fprintln(stdout, "wrote", f.Path); err != nil {
				return err
			}
		}
		if !o.Restart {
			c.next = append(c.next, c.restart...)
		}
		for _, line := range c.next {
			fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: next:", line)
		}
	}
	if c.report != nil {
		return c.report(stdout, len(changed) > 0)
	}
	return nil
}

func (o *Options) apply(ctx context.Context, ledger *change.Ledger, c configured) error {
	return o.withRestart(ctx, c.unit, c.check,
		func(check func() error) error { return ledger.Apply(c.feature, c.plan, check) })
}

// withRestart makes a change that ends with a check and, where the flag says so, with a restart.
func (o *Options) withRestart(ctx context.Context, unit string, check func() error,
	makeChange func(check func() error) error) error {
	if !o.Restart {
		return makeChange(check)
	}
	if unit == "" {
		return errUnitUnknown
	}
	restart := o.Restarts(unit)
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

// revertFeatures reverts features, all where none is named.
func (o *Options) revertFeatures(cmd *cobra.Command, features ...string) error {
	stdout := cmd.OutOrStdout()
	open := change.Open
	if o.dryRun {
		open = change.Read
	}
	ledger, err := open(o.Root)
	if err != nil {
		return err
	}
	defer ledger.Close()
	if len(features) == 0 {
		features = ledger.Features()
	}
	back, err := ledger.Reversal(features...)
	if err == nil {
		err = CDIReversed(o.Root, &back)
	}
	var changed *change.Changed
	if errors.As(err, &changed) {
		if _, err := io.WriteString(stdout, changed.Diff); err != nil {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec:", err)
		return cli.ErrProblemFound
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
	if err := Disabled(o.Root, back.Paths()); err != nil {
		return err
	}
	unit := ""
	if o.Restart {
		if unit, err = o.unit(back.Paths()); err != nil {
			return err
		}
	}
	revert := func(check func() error) error { return ledger.Revert(back, check) }
	if unit == "" && o.Restart { // no daemon reads the files
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
	if !o.Restart {
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: next: restart the daemon that reads these files")
	}
	return nil
}

// daemon returns the containerd whose files are changed.
func (o *Options) daemon() (containerd.Daemon, error) {
	return containerd.Choose(containerd.Find(o.Root), o.config)
}
