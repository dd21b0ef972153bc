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
		Use:   "status [NAMESPACE/POD…]",
		Short: "List the running RDMA containers and what they lack",
		Long: `List the RDMA containers that run on this node, or those of the named pods: what makes each
one an RDMA container, the lowest memlock of its processes, whether CAP_IPC_LOCK is
effective in its first process, and the HCAs that it holds.

The states are:
  ok       the container has what the policy gives
  below    the container, or its stored spec, has less than the policy gives
  refused  the policy would refuse the container if it were created now
  unknown  the runtime or the kubelet does not provide enough information

MEMLOCK shows one limit if the soft and the hard limit are equal, and SOFT/HARD otherwise.
IPC_LOCK is "no" in a user namespace, where the kernel does not count it.

` + whichPolicy + `

` + whichRuntime + `

With --root FILE.tar.gz, show what status found on the node that rdma-spec collect copied.

The exit status is 1 if a container is below or refused, and 3 if the node or one of its
containers cannot be examined.`,
		Example: `  rdma-spec status
  rdma-spec status ml/train-0
  rdma-spec status -o json | jq '.containers[] | select(.state != "ok")'`,
		Args:              podArgs,
		ValidArgsFunction: o.completePods,
		GroupID:           groupNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			return showStatus(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), o, limits.New(o.root), format.format, args...)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.addFlags(f)
	format = addFormatFlag(cmd, formatTable, formatJSON, formatYAML)
	return cmd
}

func showStatus(ctx context.Context, stdout, stderr io.Writer, o nodeOptions, on *limits.Processes, format string, pods ...string) error {
	result, recorded, err := o.recordedStatus()
	switch {
	case recorded && o.config != "":
		return fmt.Errorf("--config: %w", errCopy)
	case !recorded:
		result, err = o.survey(ctx, on, pods)
	case err == nil:
		result, err = result.ofPods(pods)
	}
	if err != nil {
		return err
	}
	if format == formatTable {
		err = writeTable(stdout, statusHeader, statusRows(result.Containers))
		if len(result.Containers)+result.failed == 0 {
			result.Notes = append(result.Notes, "no RDMA container runs here")
		}
		writeNotes(stderr, append(result.sources(), result.Notes...))
	} else {
		err = writeStructured(stdout, format, result)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(result.Containers, func(r runningContainer) bool { return r.State == stateBelow || r.State == stateRefused }) {
		return errProblemFound
	}
	return result.incomplete()
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
