// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// Checks whose faults the remaining steps fix: starting the plugin, and restarting the runtime.
var (
	settledByStart   = []string{"plugin-runs", "plugin-registered"}
	settledByRestart = []string{"nri-socket"}
)

// examine prints the node's other faults at the end of a configuration, except for faults that the remaining steps fix.
// The node is configured regardless of the faults, so only a failed write is an error.
func (o *Options) examine(ctx context.Context, stdout, stderr io.Writer, settled []string) error {
	findings, _, err := doctor.Diagnose(ctx, node.Options{Root: o.Root, Timeout: node.Daemons}, o.checks, nil, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "rdma-spec: cannot run the doctor's checks:", err)
		return nil
	}
	findings = slices.DeleteFunc(findings, func(f doctor.Finding) bool {
		return f.Status != doctor.Wrong || slices.Contains(settled, f.Check)
	})
	if err := doctor.ListFindings(stdout, findings, cli.IsTerminal(stdout), false); err != nil {
		return err
	}
	line := "doctor: " + cli.Counted(len(findings), "fault", "faults")
	if len(settled) > 0 {
		line += "; run rdma-spec doctor after the steps above"
	}
	_, err = fmt.Fprintln(stdout, line)
	return err
}
