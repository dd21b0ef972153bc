// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// newExplainCommand returns the explain command with the HCAs and the policy of this node.
func newExplainCommand() *cobra.Command {
	var root string
	return explain.Command(explain.Machine{
		Program:  "rdma-spec",
		Policy:   "the policy in force on this node, else " + policy.ConfigFile + ", else the built-in defaults",
		Node:     "this node",
		AddFlags: func(f *pflag.FlagSet) { node.AddRootFlag(f, &root, "the node's HCAs") },
		HCANames: node.HCANames(&root),
		Open: func(config string, another bool) (explain.Node, error) {
			s, err := node.Open(node.Options{Config: config, Root: root})
			if err != nil {
				return explain.Node{}, err
			}
			n := explain.Node{HCAs: s.HCAs, Close: s.Close}
			if n.Policy, n.Source, err = s.PolicyFor(config, another); err != nil {
				_ = s.Close() // it was only read
			}
			return n, err
		},
	})
}
