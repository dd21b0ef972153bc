// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"bytes"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/containers"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
)

// outcome is what a call gives.
type outcome struct {
	Status         int
	Stdout, Stderr string
}

// call calls the command as a part of the program.
func call(args ...string) outcome { return callOn("/", args...) }

// callOn calls the command on the node below a root.
func callOn(node string, args ...string) outcome {
	root := &cobra.Command{Use: "rdma-spec"}
	root.AddGroup(&cobra.Group{ID: cli.GroupConfiguration})
	o := &Options{node: node, checks: slices.Concat(hardware.Checks(), runtimes.Checks(), containers.Checks(),
		runtimes.KubeletChecks())}
	o.Restarts = o.nodeRestart
	root.AddCommand(o.command())
	var stdout, stderr bytes.Buffer
	status := cli.Run(root, func() error { return nil }, args, nil, &stdout, &stderr)
	return outcome{status, stdout.String(), stderr.String()}
}
