// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status is rdma-spec status, which lists the running RDMA containers.
package status

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// Command is rdma-spec status.
func Command() *cobra.Command {
	var o node.Options
	var format *cli.FormatFlag
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
  unseen   NVIDIA's container runtime has given it HCAs after NRI, where the plugin sees nothing
  unknown  the runtime or the kubelet does not provide enough information

MEMLOCK shows one limit if the soft and the hard limit are equal, and SOFT/HARD otherwise.
IPC_LOCK is "no" in a user namespace, where the kernel does not count it.

` + node.WhichPolicy + `

` + node.WhichRuntime + `

With --root FILE.tar.gz, show what status found on the node that rdma-spec collect copied.

The exit status is 1 if a container is below or refused, and 3 if the node or one of its
containers cannot be examined.`,
		Example: `  rdma-spec status
  rdma-spec status ml/train-0
  rdma-spec status -o json | jq '.containers[] | select(.state != "ok")'`,
		Args:              node.PodArgs,
		ValidArgsFunction: o.CompletePods,
		GroupID:           cli.GroupNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Pods = args
			return Show(cmd.OutOrStdout(), cmd.ErrOrStderr(), o, format.Format)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddFlags(f)
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// listed is the result for programs.
type listed struct {
	APIVersion string `json:"apiVersion"`
	node.Containers
}

// Show writes the containers of a node.
func Show(stdout, stderr io.Writer, o node.Options, format string) error {
	s, err := node.Open(o)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // it was only read
	result, err := s.JudgedContainers()
	if err != nil {
		return err
	}
	if format == cli.FormatTable {
		err = cli.WriteTable(stdout, statusHeader, statusRows(result.Containers))
		if len(result.Containers)+result.Failed == 0 {
			result.Notes = append(result.Notes, "no RDMA container runs here")
		}
		cli.WriteNotes(stderr, append(result.Sources(), result.Notes...))
	} else {
		err = cli.WriteStructured(stdout, format, listed{cli.APIVersion, result})
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(result.Containers,
		func(c node.Container) bool { return c.State == node.StateBelow || c.State == node.StateRefused }) {
		return cli.ErrProblemFound
	}
	return result.Incomplete()
}

var statusHeader = []string{"POD", "CONTAINER", "SIGNAL", "MEMLOCK", "IPC_LOCK", "HCAS", "STATE", "WHY"}

func statusRows(containers []node.Container) [][]string {
	var rows [][]string
	for _, r := range containers {
		memlock, ipcLock, hcas := "", "", strings.Join(r.HCAs, ",")
		if r.Memlock != nil {
			memlock = r.Memlock.Soft.String()
			if r.Memlock.Soft != r.Memlock.Hard {
				memlock += "/" + r.Memlock.Hard.String()
			}
		}
		if r.IPCLock != nil {
			ipcLock = map[bool]string{true: "yes", false: "no"}[*r.IPCLock]
		}
		if r.AllDevices {
			hcas = "all"
		}
		rows = append(rows, []string{r.PodName(), r.Container, string(r.Signal), memlock, ipcLock, hcas, string(r.State),
			strings.Join(slices.Concat(r.Problems, r.Notes), "; ")})
	}
	return rows
}
