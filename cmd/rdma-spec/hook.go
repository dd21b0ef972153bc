// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/hook"
)

func newHookCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hook",
		Short:   "What OCI runtimes run for a container with a CDI device",
		Example: "  rdma-spec hook memlock --help",
		Hidden:  true, // runtimes run it
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var o hook.Options
	memlock := &cobra.Command{
		Use:   "memlock",
		Short: "Raise memlock of a container that a runtime creates",
		Long: `Raise RLIMIT_MEMLOCK of a container's first process. An OCI runtime runs this as a createRuntime
hook, with the container's state on standard input. rdma-hook is the same hook as a separate
program, which starts faster; the files of 'rdma-spec cdi generate' name it.

The process is raised only if it is in the cgroup that the bundle's config.json names. No limit is
lowered. The hook changes nothing if config.json sets RLIMIT_MEMLOCK, if CRI created the container,
or if the runtime is sandboxed.

Runtimes discard what a hook writes. So an error is also a line in the journal:
journalctl -t rdma-hook. The exit status is 0 all the same, and the container starts. With
--required it is 1 then, and the runtime does not start the container.`,
		Example: "  rdma-spec hook memlock --memlock 16Gi",
		// A wrong call must not keep a container from starting, so the hook reads its flags itself.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
				return cmd.Help()
			}
			if hook.Main(args, cmd.InOrStdin(), cmd.ErrOrStderr()) != 0 {
				return errProblemFound
			}
			return nil
		},
	}
	o.AddFlags(memlock.Flags())
	cmd.AddCommand(memlock)
	return cmd
}
