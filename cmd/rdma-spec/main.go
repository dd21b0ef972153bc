// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-spec is the tool of whoever runs RDMA nodes: it writes base specs for runtimes without NRI, lists HCAs, and
// explains what the plugin nri-rdma would do with a pod.
//
// Results go to stdout, everything else to stderr. It exits with 0 when it is done and all is well, 1 when it found a problem,
// 2 when it was called wrongly, and 3 when it could not look or could not do what it should.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
)

// version is set when the program is built.
var version = "devel"

// usageError is a wrong call.
type usageError struct{ error }

// errProblemFound makes the program exit with 1 although there is no more to say.
var errProblemFound = errors.New("problem found")

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run carries out a call and gives the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	result := &resultWriter{Writer: stdout}
	root.SetOut(result)
	root.SetErr(stderr)
	command, err := root.ExecuteC()
	if result.err != nil {
		err = fmt.Errorf("cannot write to standard output: %w", oserror.Reason(result.err))
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblemFound):
		return 1
	case isUsageError(err):
		fmt.Fprintf(stderr, "rdma-spec: %v; see '%s --help'\n", err, command.CommandPath())
		return 2
	}
	fmt.Fprintf(stderr, "rdma-spec: %v%s\n", err, advice(err))
	return 3
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdma-spec",
		Short: "Give RDMA containers the memlock, IPC_LOCK and devices that they need",
		Long: "rdma-spec writes OCI base specs for runtimes without NRI, lists the node's HCAs, and explains what the plugin\n" +
			"nri-rdma does with a pod.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newGenerateCommand(), newDevicesCommand(), newExplainCommand(), newConfigCommand(),
		newStatusCommand(), newRepairCommand(), newVerifyCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "rdma-spec", version)
			return err
		},
	}
}

// isUsageError says whether the program was called wrongly. Cobra's own complaints about commands and arguments have no type.
func isUsageError(err error) bool {
	var usage usageError
	if errors.As(err, &usage) {
		return true
	}
	text := err.Error()
	return strings.HasPrefix(text, "unknown command") || strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires ")
}
