// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// complete has the shell complete a flag's value by words; they may depend on what is typed so far.
func complete(cmd *cobra.Command, flag string, words func(typed string) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return words(typed), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// hcaNames completes a list of HCAs below a root: the last name in it, by those that are not in it yet.
func hcaNames(root *string, others ...string) func(typed string) []string {
	return func(typed string) []string {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var words []string
		if before == "" {
			words = others
		}
		node, err := hca.Scan(*root)
		if err != nil {
			return words
		}
		for _, h := range node.HCAs {
			if !strings.Contains(","+before, ","+h.Name+",") {
				words = append(words, before+h.Name)
			}
		}
		return words
	}
}
