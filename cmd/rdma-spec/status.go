// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
)

func newStatusCommand() *cobra.Command {
	var o nodeOptions
	var format *formatFlag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the RDMA containers that run, and what is not as the policy wants",
		Long: `List every RDMA container that runs on this node: what makes it one, the memlock and CAP_IPC_LOCK of its first process, and the
HCAs that it holds. The policy is the plugin's, and so is the decision; the plugin need not run.

The state is ok; below, where a container has less than the policy gives; refused, where the policy would refuse what runs; or
unknown. Memlock is one limit where soft and hard are equal, else SOFT/HARD. IPC_LOCK is "no" in a user namespace, where the
kernel does not count it.

The exit status is 1 if some container is below or refused.`,
		Example: `  rdma-spec status
  rdma-spec status -o json | jq -r '.containers[] | select(.state != "ok") | "\(.namespace)/\(.pod) \(.problems[])"'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showStatus(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o, limits.New(o.root), format.format)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.addFlags(f)
	format = addFormatFlag(f, formatTable, formatJSON, formatYAML)
	return cmd
}

func showStatus(ctx context.Context, stdout, stderr io.Writer, o nodeOptions, on *limits.Processes, format string) error {
	result, err := o.survey(ctx, on)
	if err != nil {
		return err
	}
	result.runtime.Close()
	if format == formatTable {
		err = writeTable(stdout, statusHeader, statusRows(result.Containers))
		if len(result.Containers) == 0 {
			result.Notes = append(result.Notes, "no RDMA container runs here")
		}
		writeNotes(stderr, result.Notes)
	} else {
		err = writeStructured(stdout, format, result)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(result.Containers, func(r runningContainer) bool { return r.State == stateBelow || r.State == stateRefused }) {
		return errProblemFound
	}
	return nil
}

// writeNotes says what is to be said about the node, a few lines of it.
func writeNotes(stderr io.Writer, notes []string) {
	const most = 10
	for i, note := range notes {
		if i == most {
			fmt.Fprintf(stderr, "rdma-spec: and %d more such lines\n", len(notes)-most)
			return
		}
		fmt.Fprintf(stderr, "rdma-spec: %s\n", note)
	}
}

var statusHeader = []string{"POD", "CONTAINER", "SIGNAL", "MEMLOCK", "IPC_LOCK", "HCAS", "STATE", "WHY"}

func statusRows(containers []runningContainer) [][]string {
	var rows [][]string
	for _, r := range containers {
		rows = append(rows, []string{
			r.pod(), r.Container, string(r.Signal), r.memlockCell(), r.ipcLockCell(), r.hcasCell(), string(r.State),
			strings.Join(slices.Concat(r.Problems, r.Notes), "; "),
		})
	}
	return rows
}

func (r *runningContainer) memlockCell() string {
	switch {
	case r.Memlock == nil:
		return ""
	case r.Memlock.Soft == r.Memlock.Hard:
		return r.Memlock.Soft.String()
	}
	return r.Memlock.Soft.String() + "/" + r.Memlock.Hard.String()
}

func (r *runningContainer) ipcLockCell() string {
	switch {
	case r.IPCLock == nil:
		return ""
	case *r.IPCLock:
		return "yes"
	}
	return "no"
}

func (r *runningContainer) hcasCell() string {
	if r.AllDevices {
		return "all"
	}
	return strings.Join(r.HCAs, ",")
}
