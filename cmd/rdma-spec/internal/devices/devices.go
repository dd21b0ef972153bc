// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devices implements rdma-spec devices, which lists a node's HCAs. Package hca reads the HCAs.
package devices

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Command is rdma-spec devices.
func Command() *cobra.Command {
	var root string
	var format *cli.FormatFlag
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the node's HCAs, their ports, and their character devices",
		Long: `List the node's HCAs from sysfs, with one line for each port and one line for the node's rdma_cm.
"!" marks a device that cannot be used. After the table, the command prints the node's problems to
standard error.

With -o json or -o yaml, the result also contains the problems and the node's network namespace
mode. For each HCA, the result contains the type of function (physical, virtual, or scalable), the
parent, the driver, the ABI version, the LIDs, the subnet prefixes, and the GIDs.

The exit status is 0 if the command can read the list of HCAs, even if the list is empty or an HCA
has a problem. The exit status is 3 if the command cannot read the list.`,
		Example: `  rdma-spec devices
  rdma-spec devices -o json | jq -r '.hcas[] | select(any(.ports[]; .state == "ACTIVE")).name'`,
		GroupID: cli.GroupNode,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return List(cmd.OutOrStdout(), cmd.ErrOrStderr(), root, format.Format)
		},
	}
	node.AddRootFlag(cmd.Flags(), &root, "the node's /sys and /dev")
	format = cli.AddFormatFlag(cmd, cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	return cmd
}

// Inventory is the result of rdma-spec devices.
type Inventory struct {
	cli.Meta
	*hca.Inventory
}

// List writes the HCAs to stdout, and notes about the node to stderr.
func List(stdout, stderr io.Writer, root, format string) error {
	scan := hca.Scan
	if format != cli.FormatTable {
		scan = hca.ScanDetails
	}
	node, err := scan(root)
	if err != nil {
		return err
	}
	var notes []string
	if len(node.HCAs) == 0 {
		notes = append(notes,
			"this node has no HCA: if you expect an HCA, check that its driver, such as mlx5_ib, irdma, bnxt_re, efa, "+
				"or rdma_rxe, is loaded")
	}
	if format == cli.FormatTable {
		notes = append(notes, deviceNotes(node)...)
		err = cli.WriteTable(stdout, deviceHeader, deviceRows(node))
	} else {
		err = cli.WriteStructured(stdout, format, Inventory{cli.Result("Devices"), node})
	}
	if err != nil {
		return err
	}
	for _, note := range notes {
		if _, err := fmt.Fprintf(stderr, "rdma-spec: %s\n", note); err != nil {
			return err
		}
	}
	return nil
}

var deviceHeader = []string{"HCA", "PCI", "NUMA", "LINK LAYER", "PORT STATE", "RATE", "NETDEV", "DEVICES"}

// deviceRows returns a row for each port and for each HCA without ports. The last row is for rdma_cm, which belongs to
// the node.
func deviceRows(node *hca.Inventory) [][]string {
	var rows [][]string
	for _, h := range node.HCAs {
		numa := ""
		if h.NUMANode >= 0 {
			numa = strconv.Itoa(h.NUMANode)
		}
		if len(h.Ports) == 0 {
			rows = append(rows, []string{h.Name, h.PCI, numa, "", "", "", "", deviceNames(h.Devices, 0)})
		}
		for _, p := range h.Ports {
			name := h.Name
			if len(h.Ports) > 1 {
				name += "/" + strconv.Itoa(p.Number) // as in the output of iproute2's rdma
			}
			rows = append(rows, []string{name, h.PCI, numa, p.LinkLayer, portState(p), p.Rate, netdevs(p),
				deviceNames(h.Devices, p.Number)})
		}
	}
	if cm := node.RDMACM; cm != nil {
		rows = append(rows, []string{"(node)", "", "", "", "", "", "", deviceNames([]hca.Device{*cm}, 0)})
	}
	return rows
}

// portState adds the physical state of a port that is not ACTIVE: "DOWN (Polling)".
func portState(p hca.Port) string {
	if p.Active() || p.PhysState == "" {
		return p.State
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(p.State, "unknown"), p.PhysState)
}

// netdevs returns a port's first netdevs and the number of the others, so that the table fits on a screen.
func netdevs(p hca.Port) string {
	const most = 2
	if more := len(p.Netdevs) - most; more > 0 {
		return fmt.Sprintf("%s,+%d", strings.Join(p.Netdevs[:most], ","), more)
	}
	return strings.Join(p.Netdevs, ",")
}

// deviceNames returns the devices of a port: the HCA's verbs device, and the port's own devices. Port 0 means all
// ports.
func deviceNames(devices []hca.Device, port int) string {
	var names []string
	for _, d := range devices {
		if port == 0 || d.Port == 0 || d.Port == port {
			name := path.Base(d.Path)
			if !d.Sound() && !d.Missing {
				name += "!"
			}
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// deviceNotes returns the node's problems. All missing device nodes share one line, because in a copy or in a
// container, all device nodes are missing.
func deviceNotes(node *hca.Inventory) (notes []string) {
	var missing []string
	look := func(about string, problems []string, devices ...hca.Device) {
		for _, d := range devices {
			if d.Missing {
				missing = append(missing, path.Base(d.Path))
			} else if !d.Sound() {
				problems = append(slices.Clip(problems), d.Problem)
			}
		}
		for _, problem := range problems {
			notes = append(notes, about+problem)
		}
	}
	for _, h := range node.HCAs {
		look("HCA "+h.Name+": ", h.Problems, h.Devices...)
	}
	if node.RDMACM != nil {
		look("", nil, *node.RDMACM)
	}
	notes = append(notes, node.Problems...)
	if len(missing) > 0 {
		notes = append(notes,
			fmt.Sprintf("sysfs lists devices whose device nodes are missing from /dev/infiniband (%s): check that the "+
				"node's /dev is visible to this command", joinFirst(missing)))
	}
	return notes
}

// joinFirst returns the first names and the number of the others.
func joinFirst(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
