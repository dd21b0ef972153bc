// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/why/command"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
)

// newWhyCommand returns the why command with the checks of this node or of a support bundle.
func newWhyCommand(checks []doctor.Check) *cobra.Command {
	var look bool
	o := node.Options{Timeout: node.Daemons}
	return command.New(command.Machine{
		Program: "rdma-spec",
		AddFlags: func(f *pflag.FlagSet) {
			f.BoolVar(&look, "doctor", false, "check this node for the possible causes, and list confirmed "+
				"causes first")
			node.AddRootFlag(f, &o.Root, "the files that these checks need")
			f.StringVar(&o.Config, "config", "", "use this configuration `FILE` instead of the policy in force")
		},
		Wrong: func(ctx context.Context, pages []string, stderr io.Writer) (map[string]bool, error) {
			known := func(page string) bool {
				return slices.ContainsFunc(checks, func(c doctor.Check) bool { return c.ID == page })
			}
			pages = slices.DeleteFunc(pages, func(page string) bool { return !known(page) })
			if !look && o.Root == "/" {
				return nil, nil
			}
			wrong := map[string]bool{}
			if len(pages) == 0 {
				return wrong, nil
			}
			findings, _, err := doctor.Diagnose(ctx, o, checks, pages, stderr)
			for _, f := range findings {
				if f.Status == doctor.Wrong {
					wrong[f.Check] = true
				}
			}
			return wrong, err
		},
	})
}
