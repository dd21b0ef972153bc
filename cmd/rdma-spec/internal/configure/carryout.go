// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/editor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
)

// configured is the plan of a subcommand.
type configured struct {
	goals   []record.Goal // the first one's feature is the plan's
	plan    change.Plan
	unit    string                                // to restart
	check   func() error                          // of the files on the node; can be nil
	next    []string                              // the next steps, whether or not the daemon is restarted
	restart []string                              // the next steps without --restart
	report  func(w io.Writer, changed bool) error // prints further text for people; can be nil
}

// Result contains the changes to the node.
type Result struct {
	cli.Meta
	// Changed is true if a file was changed. With --dry-run, it is true if a file would be changed.
	Changed bool `json:"changed"`
	// Files are the paths of the changed files.
	Files []string `json:"files"`
	// Next lists the steps that remain for the administrator.
	Next []string `json:"next,omitempty"`
	// Left are the files that were not restored, and the reasons.
	Left    []string `json:"left,omitempty"`
	removed []string // of the files
}

// print prints a result: the change of each file, or the diff of --dry-run.
func (o *Options) print(cmd *cobra.Command, r Result, done, diff, nothing string) error {
	r.Meta = cli.Result("Configure")
	r.Changed = len(r.Files) > 0
	r.Files = append([]string{}, r.Files...)
	if o.format == cli.FormatJSON {
		return cli.WriteStructured(cmd.OutOrStdout(), o.format, r)
	}
	text := ""
	switch {
	case o.dryRun:
		text = diff
		r.Next = nil
	case !r.Changed:
		text = nothing
		r.Next = nil
	default:
		for _, path := range r.Files {
			if slices.Contains(r.removed, path) {
				text += "removed " + path + "\n"
			} else {
				text += done + " " + path + "\n"
			}
		}
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	for _, line := range r.Next {
		fmt.Fprintln(cmd.ErrOrStderr(), "rdma-spec: next:", line)
	}
	return err
}

// open opens the ledger, for reading with --dry-run.
func (o *Options) open() (*change.Ledger, error) {
	if o.dryRun {
		return change.Read(o.Root)
	}
	return change.Open(o.Root)
}

// carryOut makes a plan, and prints it or carries it out. In the meantime, no other configure plans or makes changes.
func (o *Options) carryOut(cmd *cobra.Command, plan func() (configured, error)) error {
	ledger, err := o.open()
	if err != nil {
		return err
	}
	defer ledger.Close()
	o.ledger = ledger
	c, err := plan()
	if byHand := new(editor.ByHand); errors.As(err, &byHand) && o.format != cli.FormatJSON {
		if _, err := io.WriteString(cmd.OutOrStdout(), byHand.Steps); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	sayLinked(cmd.ErrOrStderr(), c.plan.Changed())
	o.sayReload(cmd.ErrOrStderr(), c.plan.Changed())
	var r Result
	for _, f := range c.plan.Changed() {
		r.Files = append(r.Files, f.Path)
		if f.Content == nil {
			r.removed = append(r.removed, f.Path)
		}
	}
	changed := len(r.Files) > 0
	switch {
	case changed && !o.dryRun:
		if err := o.withRestart(cmd.Context(), c.unit, c.check,
			func(check func() error) error { return ledger.Apply(c.plan, check, c.goals...) }); err != nil {
			return o.immutable(err, c.plan)
		}
	case !o.dryRun:
		if o.Restart {
			notRestarted(cmd.ErrOrStderr(), c.restart)
		}
		if err := ledger.Apply(c.plan, nil, c.goals...); err != nil {
			return err
		}
	}
	r.Next = c.next
	if !o.Restart {
		r.Next = append(r.Next, c.restart...)
	}
	err = o.print(cmd, r, "wrote", c.plan.Diff(), features(c.goals)+": nothing to change\n")
	if err == nil && c.report != nil && !o.dryRun && o.format != cli.FormatJSON {
		return c.report(cmd.OutOrStdout(), changed)
	}
	return err
}

// withRestart makes a change, followed by a check and, with --restart, by a restart. A signal interrupts the restart,
// and the files are restored.
func (o *Options) withRestart(ctx context.Context, unit string, check func() error,
	makeChange func(check func() error) error) error {
	if !o.Restart {
		return makeChange(check)
	}
	if unit == "" {
		return errUnitUnknown
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
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
		return restart.Undone(context.WithoutCancel(ctx), err)
	}
	return nil
}

// features lists the features of goals.
func features(goals []record.Goal) string {
	var names []string
	for _, g := range goals {
		names = append(names, g.Feature)
	}
	return strings.Join(names, " and ")
}
