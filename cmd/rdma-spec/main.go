// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-spec is the tool for administrators of RDMA nodes: it sets nodes up, finds what is wrong with them, lists HCAs and running RDMA
// containers, repairs containers, explains what the plugin nri-rdma does with a pod, and writes base specs and CDI files.
//
// Results go to stdout, everything else to stderr. The exit status is 0 when all is well, 1 when it found a problem, 2 for a wrong call,
// and 3 when it could not look or could not do what it was asked for.
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

// errProblemFound makes the program exit with 1 and without another message.
var errProblemFound = errors.New("problem found")

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run carries out a call and returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	release := func() error { return nil }
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		release, err = openRoot(cmd)
		return err
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	result := &resultWriter{Writer: stdout}
	root.SetOut(result)
	root.SetErr(stderr)
	command, err := root.ExecuteC()
	if removed := release(); err == nil {
		err = removed
	}
	if result.err != nil {
		err = fmt.Errorf("cannot write to standard output: %w", oserror.Reason(result.err))
	}
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errProblemFound):
		return 1
	case errors.As(err, &status):
		return int(status)
	case isUsageError(err):
		fmt.Fprintf(stderr, "rdma-spec: %v; see '%s --help'\n", err, command.CommandPath())
		return 2
	}
	fmt.Fprintf(stderr, "rdma-spec: %v%s\n", err, advice(err))
	return 3
}

// The groups of commands.
const (
	groupNode          = "node"
	groupPod           = "pod"
	groupConfiguration = "configuration"
)

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdma-spec",
		Short: "Give RDMA containers the memlock, IPC_LOCK and devices that they need",
		Long: `rdma-spec sets up nodes for RDMA containers, and finds what is wrong with them. It shows the
HCAs and the RDMA containers of a node, explains what the plugin nri-rdma does with a pod, and
writes base specs and CDI files for runtimes without NRI.

Exit status: 0 if all is well, 1 if a problem was found, 2 for a wrong call, and 3 if
rdma-spec could not look or could not do what it was asked for.`,
		Example: `  rdma-spec devices
  rdma-spec status
  rdma-spec explain -f pod.yaml`,
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("rdma-spec {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", fmt.Sprintf("FlagUsagesWrapped %d |", helpColumns)))
	root.AddCommand(newReadHCAsCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddGroup(
		&cobra.Group{ID: groupNode, Title: "On a node:"},
		&cobra.Group{ID: groupPod, Title: "For a pod:"},
		&cobra.Group{ID: groupConfiguration, Title: "Configuration:"},
	)
	root.AddCommand(newDevicesCommand(), newStatusCommand(), newRepairCommand(), newDoctorCommand(), newCollectCommand(),
		newExplainCommand(), newVerifyCommand(), newConfigCommand(), newConfigureCommand(), newGenerateCommand(), newCDICommand(),
		newHookCommand(), newVersionCommand())
	return root
}

// helpColumns bounds the lines of help.
const helpColumns = 96

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  rdma-spec version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "rdma-spec", version)
			return err
		},
	}
}

// isUsageError reports whether an error is a wrong call. Cobra's own errors about commands and arguments have no type.
func isUsageError(err error) bool {
	var usage usageError
	if errors.As(err, &usage) {
		return true
	}
	text := err.Error()
	return strings.HasPrefix(text, "unknown command") || strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires ")
}
