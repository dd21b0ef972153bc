// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-spec is the command line for administrators of RDMA nodes. It configures nodes, diagnoses faults, and
// lists HCAs and running RDMA containers. It also raises the memlock of running containers, shows what the nri-rdma
// plugin grants to a pod, and writes base specs and CDI files.
//
// Results go to stdout, and all other output goes to stderr. The exit status is 0 if there is no problem, 1 if
// rdma-spec found a problem, 2 for a usage error, and 3 if a check or the requested change was not possible.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/config"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/devices"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/checks"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/generate"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/repair"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/status"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verify"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/wait"
)

// version is set when the program is built.
var version = "devel"

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// execute runs a command and returns the exit status.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cli.Version = version
	root := newRootCommand()
	release := func() error { return nil }
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		release, err = node.OpenRoot(cmd)
		return err
	}
	return cli.Run(root, func() error { return release() }, args, stdin, stdout, stderr)
}

func newRootCommand() *cobra.Command {
	ownVersion := newVersionCommand()
	root := &cobra.Command{
		Use:   "rdma-spec",
		Short: "Grant RDMA containers memlock, IPC_LOCK, and devices",
		Long: `rdma-spec configures nodes for RDMA containers, and diagnoses faults on nodes. It lists a node's
HCAs and RDMA containers, and shows what the nri-rdma plugin grants to a pod. For runtimes without
NRI, it writes base specs and CDI files.

The exit status is 0 if there is no problem, 1 if rdma-spec found a problem, 2 for a usage error,
and 3 if a check or the requested change was not possible.`,
		Example: `  rdma-spec devices
  rdma-spec status
  rdma-spec explain pod.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				return ownVersion.RunE(cmd, args)
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolP("version", "v", false, "print the version of rdma-spec")
	wrapFlags(root)
	root.AddCommand(node.ReadHCAsCommand(), newWhyCommand(checks.All()))
	root.AddGroup(
		&cobra.Group{ID: cli.GroupNode, Title: "On a node:"},
		&cobra.Group{ID: cli.GroupPod, Title: "For a pod:"},
		&cobra.Group{ID: cli.GroupConfiguration, Title: "Configuration:"},
	)
	all := checks.All()
	root.AddCommand(devices.Command(), status.Command(), repair.Command(), doctor.Command(all),
		collect.Command(all), newExplainCommand(), verify.Command(), config.Command(), configure.Command(all),
		generate.Command(), cdi.Command(), wait.Command(), ownVersion, newManCommand(root), newSleepCommand())
	return root
}

// wrapFlags makes the usage text of all commands wrap the descriptions of flags. A cobra template could also do this,
// and could print the version. However, text/template finds methods by name, so the linker would keep all methods,
// which take up 4 MB.
func wrapFlags(root *cobra.Command) {
	usage := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		const columns = 96
		to := cmd.OutOrStderr()
		text := strings.Builder{}
		cmd.SetOut(&text)
		defer cmd.SetOut(to)
		if err := usage(cmd); err != nil {
			return err
		}
		local := cmd.LocalFlags()
		inherited := cmd.InheritedFlags()
		_, err := strings.NewReplacer(local.FlagUsages(), local.FlagUsagesWrapped(columns),
			inherited.FlagUsages(), inherited.FlagUsagesWrapped(columns)).WriteString(to, text.String())
		return err
	})
}

// newManCommand returns the hidden command with which packages write the manual pages.
func newManCommand(root *cobra.Command) *cobra.Command {
	root.DisableAutoGenTag = true // the tag contains the date on which a page is generated
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages for all commands", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "rdma-spec " + version}, args[0])
		},
	}
}

// newSleepCommand returns the hidden command that keeps the pods of kubectl rdma running while kubectl rdma runs other
// commands in the pods. The pods' image contains no other program that keeps running.
func newSleepCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sleep DURATION", Short: "Wait for DURATION, then exit", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			long, err := time.ParseDuration(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			time.Sleep(long)
			return nil
		},
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of rdma-spec",
		Example: "  rdma-spec version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "rdma-spec", version)
			return err
		},
	}
}
