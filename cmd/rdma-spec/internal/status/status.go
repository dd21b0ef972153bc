// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status implements rdma-spec status, which lists the running RDMA containers. Package node reads the
// containers, and computes the grant that each container should have.
package status

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// Command is rdma-spec status.
func Command() *cobra.Command {
	var o node.Options
	var outside, report bool
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "status [NAMESPACE/POD…]",
		Short: "Show the running RDMA containers, and whether they conform to the policy",
		Long: `List the RDMA containers that are running on this node or in the named pods. For each
container, show its HCAs, how it uses them, and the signal that identifies it as an RDMA container.
Also show the lowest locked-memory limit (memlock) of its processes, and whether CAP_IPC_LOCK is
effective in its first process.

USE shows how much memory the processes have registered, and which HCAs they use.
USE is "none" if the processes have neither opened an HCA nor pinned memory. USE is "unknown" if
the kernel is older than Linux 5.14, or if this command runs in a pod without hostPID.
Other containers and the node's processes are listed if they use RDMA.

The states are:
  ok       the container conforms to the policy
  below    the container or its stored spec lacks part of the grant
  refused  the policy would refuse the container if it were created now
  unseen   NVIDIA's container runtime added HCAs too late for the plugin to see them
  unknown  the runtime or the kubelet does not provide enough information
  outside  the container uses RDMA outside the policy, for example because it is privileged

MEMLOCK shows one limit if the soft and hard limits are equal. If they differ, MEMLOCK shows
SOFT/HARD. IPC_LOCK is "no" in a user namespace, because the kernel ignores the capability there.

` + node.WhichPolicy + `

` + node.WhichRuntime + `

With --root FILE.tar.gz, show the status of the node from which the support bundle was collected.

The exit status is 1 if a container is in the state "below" or "refused". The exit status is 3 if
the node or one of its containers cannot be examined or, with --outside, if it is unknown which
processes use an HCA. With --report, the exit status is 0 if the node can be examined.`,
		Example: `  rdma-spec status
  rdma-spec status ml/train-0
  rdma-spec status --outside
  rdma-spec status -o json | jq '.containers[] | select(.state != "ok")'`,
		Args:              node.PodArgs,
		ValidArgsFunction: o.CompletePods,
		GroupID:           cli.GroupNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Pods = args
			o.Use = true
			found, err := Show(cmd.OutOrStdout(), cmd.ErrOrStderr(), o, outside, format.Format)
			if err == nil && !report {
				err = found
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&outside, "outside", false, "list only containers and processes that use RDMA outside the policy")
	f.BoolVar(&report, "report", false, "exit with status 0 even if containers lack part of their grant")
	f.BoolVar(&o.QueuePairs, "queue-pairs", false,
		"also count queue pairs by state, which makes the kernel query the HCA about each queue pair")
	o.AddFlags(f)
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// Result contains the node's containers.
type Result struct {
	cli.Meta
	node.Containers
}

// Show writes all containers of a node, or only the containers that use RDMA outside the policy. The first result is
// cli.ErrProblemFound, or an error that names the objects that could not be examined.
func Show(stdout, stderr io.Writer, o node.Options, outside bool, format string) (found, err error) {
	s, err := node.Open(o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	result, err := s.JudgedContainers()
	if err != nil {
		return nil, err
	}
	incomplete := result.Incomplete()
	if outside {
		inventory, err := s.RDMA()
		if err != nil {
			return nil, fmt.Errorf("cannot determine which processes use RDMA: %w", err)
		}
		if unknown := inventory.Unknown(); len(unknown) > 0 {
			incomplete = errors.New(unknown[0])
		}
		result.Containers = []node.Container{}
	}
	if format == cli.FormatTable {
		err = cli.WriteTable(stdout, statusHeader, statusRows(slices.Concat(result.Containers, result.Outside)))
		if len(result.Containers)+result.Failed == 0 && !outside {
			result.Notes = append(result.Notes, "no RDMA container is running on this node")
		}
		cli.WriteNotes(stderr, slices.DeleteFunc(append(result.Sources(), result.Notes...),
			func(note string) bool { return incomplete != nil && note == incomplete.Error() })) // the final error
	} else {
		err = cli.WriteStructured(stdout, format, Result{cli.Result("Status"), result})
	}
	if slices.ContainsFunc(result.Containers,
		func(c node.Container) bool { return c.State == node.StateBelow || c.State == node.StateRefused }) {
		incomplete = cli.ErrProblemFound
	}
	return incomplete, err
}

var statusHeader = []string{"POD", "CONTAINER", "SIGNAL", "MEMLOCK", "IPC_LOCK", "HCAS", "USE", "STATE", "WHY"}

func statusRows(containers []node.Container) [][]string {
	var rows [][]string
	for _, r := range containers {
		memlock := ""
		ipcLock := ""
		hcas := strings.Join(r.HCAs, ",")
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
		pod := r.PodName()
		container := r.Container
		if r.Pod == "" {
			pod = ""
			container = fmt.Sprintf("%s[%d]", r.Container, r.PID)
		}
		rows = append(rows, []string{pod, container, string(r.Signal), memlock, ipcLock, hcas, r.Use.Summary,
			string(r.State), cli.Why(r.Problems, r.Fix, r.Notes)})
	}
	return rows
}
