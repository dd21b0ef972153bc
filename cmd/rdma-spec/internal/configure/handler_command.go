// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/editor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

const runtimeClass = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: %[1]s
handler: %[1]s
`

func newConfigureHandlerCommand(o *Options) *cobra.Command {
	var like string
	var inPlace, force bool
	cmd := &cobra.Command{
		Use:   "handler NAME",
		Short: "Add a runtime handler whose containers can register RDMA memory",
		Long: `Add a runtime handler to containerd. The command copies an existing handler, and gives the copy a
base spec that sets the locked-memory limit (memlock) to unlimited and adds CAP_IPC_LOCK. The
command also prints a RuntimeClass for the new handler. Use this command on nodes without NRI. With
--in-place, the command adds the base spec to the existing handler NAME. This change affects all
containers that use that handler.

The new base spec is derived from the existing handler's base spec or, if that handler has none,
from containerd's default spec. Unlike the output of 'ctr oci spec', the new base spec does not
limit open files to 1024.`,
		Example: `  rdma-spec configure handler rdma --like runc
  rdma-spec configure handler rdma-nvidia --like nvidia --dry-run
  rdma-spec configure handler runc --in-place
  rdma-spec configure handler rdma --revert`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&like, "like", "", "the existing `RUNTIME` handler to copy, such as runc or nvidia")
	f.BoolVar(&inPlace, "in-place", false, "change the existing handler NAME")
	f.BoolVar(&force, "force", false, "change the base spec even if other handlers use it; the change also affects "+
		"their containers")
	return o.carriesOut(cmd, goal.Handler, func(cmd *cobra.Command, args []string) (configured, error) {
		name := args[0]
		model := like
		switch {
		case inPlace == (like != ""):
			return configured{}, cli.Usage(errors.New("use either --like RUNTIME or --in-place"))
		case inPlace:
			model = name
		}
		daemon, err := o.daemon(cmd.Context())
		if err != nil {
			return configured{}, err
		}
		c := configured{check: func() error { return daemon.Check(cmd.Context()) }, unit: Unit(o.Root, daemon)}
		if !inPlace {
			c.report = func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "---\n"+runtimeClass, name)
				return err
			}
		}
		edit, err := o.edit(cmd.Context(), &c, daemon, record.Goal{Feature: goal.Handler + name,
			Asked: map[string]string{goal.Like: model}})
		if err == nil {
			edit.Force = force
			c.plan, err = edit.Handler(cmd.Context(), baseSpec)
		}
		c.restart = c.restartNext(daemon)
		return c, err
	})
}

// edit returns the editor of a containerd's configuration for a goal, which becomes the goal of c. The editor also
// restores other goals that are no longer met, and starts from the resulting configuration.
func (o *Options) edit(ctx context.Context, c *configured, d containerd.Daemon, g record.Goal) (edit editor.Editor,
	err error) {
	g.Config = d.Config
	if g.Version, err = d.Program.Version(ctx); err != nil {
		return edit, err
	}
	edit = editor.Editor{Daemon: d, Goal: g}
	if edit.Others, err = goal.Others(ctx, o.ledger.Record, d, g.Feature); err != nil {
		return edit, err
	}
	c.goals = append([]record.Goal{g}, edit.Others...)
	var features []string
	for _, g := range c.goals {
		features = append(features, g.Feature)
	}
	edit.Without, err = o.ledger.Without(features...)
	return edit, err
}

// baseSpec makes a base spec for RDMA containers from another base spec, or from containerd's default spec.
func baseSpec(base []byte) ([]byte, error) {
	containerd, err := platform.Find("containerd")
	if err != nil {
		return nil, err
	}
	if base != nil {
		if base, err = baseline.WithoutFileLimit(base); err != nil {
			return nil, err
		}
	}
	return containerd.Config(spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockYes}, base)
}

func newConfigureLimitsCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits [UNIT]",
		Short: "Remove the memlock limit from the unit of containerd or Docker",
		Long: `Write a systemd drop-in with LimitMEMLOCK=infinity for the unit of a container runtime, such as
containerd or docker. The drop-in affects the daemon and, on this node, every container whose spec
does not set a locked-memory limit (memlock).`,
		Example: `  rdma-spec configure limits
  rdma-spec configure limits docker --dry-run
  rdma-spec configure limits --revert`,
		Args: cobra.MaximumNArgs(1),
	}
	return o.carriesOut(cmd, goal.Limits, func(_ *cobra.Command, args []string) (c configured, err error) {
		c.plan, c.unit, err = Limits(o.Root, append(args, "")[0], o.containerds())
		c.goals = []record.Goal{{Feature: goal.Limits, Asked: map[string]string{goal.Unit: c.unit}}}
		c.restart = append([]string{"systemctl daemon-reload"}, restartNext(c.unit)...)
		return c, err
	})
}
