// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rdma-node boots an RDMA node, runs a command on it, and exits with the command's status. Without a command,
// it runs an interactive shell.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/test/node"
)

// This program's own exit statuses, which are the same as those of timeout(1).
const (
	exitTimeout = 124
	exitFailed  = 125
)

// commandTimeout is the default timeout of a command.
const commandTimeout = 30 * time.Minute

type flags struct {
	options node.Options
	timeout time.Duration
	prepare bool
	which   bool
	parts   string
	shell   bool
	quiet   bool
	console bool
	env     []string
}

func main() { os.Exit(mainStatus()) }

func mainStatus() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	status := exitFailed
	command := newCommand(&status)
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rdma-node:", err)
	}
	return status
}

func newCommand(status *int) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "rdma-node [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Boot an RDMA node and run a command in it, or a shell",
		Long: `rdma-node boots a virtual machine with soft-RoCE HCAs on this host's own files,
runs a command in it and exits with the command's status: ` + fmt.Sprint(exitTimeout) + ` where the node took
too long, ` + fmt.Sprint(exitFailed) + ` where it could not be built or has died. Where its emulated CPUs
lock up, which its kernel notices, it is booted once more and the command runs again.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(command *cobra.Command, args []string) (err error) {
			*status, err = runNode(command.Context(), f, args)
			return err
		},
	}
	set := command.Flags()
	set.SetInterspersed(false)
	set.DurationVar(&f.timeout, "timeout", 0,
		"end the node after this time, not counting the building of its parts (default: "+
			commandTimeout.String()+" for a command, never for a shell)")
	set.IntVar(&f.options.Memory, "memory", 4096, "memory in MiB")
	set.IntVar(&f.options.CPUs, "cpus", 2, "virtual CPUs")
	set.IntVar(&f.options.HCAs, "hcas", 3, "software HCAs; the port of the last of several is down")
	set.StringVar(&f.options.Share, "share", "", "directory of the host that is writable in the node, at /run/host-share")
	set.StringVar(&f.options.Machine, "machine", "", "kvm, uml or tcg (default: the fastest that has been seen to work)")
	set.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for the command's environment; may be repeated")
	set.StringVar(&f.parts, "parts", string(node.Core),
		"which parts to build first: main, test, core, kubernetes, all, or critest")
	set.BoolVar(&f.prepare, "prepare", false, "build what is missing and boot nothing")
	set.BoolVar(&f.which, "which", false, "print which machine runs the node, and boot nothing")
	set.BoolVar(&f.shell, "shell", false, "an interactive shell (the default without a command)")
	set.BoolVar(&f.console, "console", false, "show the guest's console on stderr while it runs")
	set.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing of one's own unless something fails")
	return command
}

// runNode boots a node, or does what the flags request instead. It returns the exit status, and the error to show if
// rdma-node itself failed.
func runNode(ctx context.Context, f flags, args []string) (int, error) {
	f.options.Log = os.Stderr
	if f.quiet {
		f.options.Log = io.Discard
	}
	if f.console {
		f.options.Console = os.Stderr
	}
	if f.options.HCAs == 0 {
		f.options.HCAs = -1
	}
	parts, err := node.Prepare(ctx, f.options.Log, node.Selection(f.parts))
	if err != nil || f.prepare {
		return statusOf(err), err
	}
	if f.which {
		machine, err := node.Machine(ctx, parts, f.options)
		fmt.Println(machine)
		return statusOf(err), err
	}
	if f.timeout == 0 && len(args) > 0 && !f.shell {
		f.timeout = commandTimeout
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, node.ErrTimeout)
		defer cancel()
	}
	status, err := bootAndRun(ctx, parts, f, args)
	var died *node.DiedError
	if errors.As(err, &died) && died.LockedUp && len(args) > 0 && !f.shell {
		fmt.Fprintf(os.Stderr, "rdma-node: %v. That is not the command's doing: once more, from the start\n", err)
		status, err = bootAndRun(ctx, parts, f, args)
	}
	return status, err
}

// bootAndRun boots a node, runs the command or a shell on it, and ends it.
func bootAndRun(ctx context.Context, parts node.PartSet, f flags, args []string) (int, error) {
	n, err := node.Boot(ctx, parts, f.options)
	if err == nil {
		var status int
		if status, err = runCommand(ctx, n, f, args); err == nil || status != 0 {
			return status, errors.Join(err, n.Close())
		}
	}
	if n != nil {
		_ = n.Close() // the important error was already returned
		showConsole(n, err)
	}
	return statusOf(err), err
}

// runCommand runs the command, or a shell.
func runCommand(ctx context.Context, n *node.Node, f flags, args []string) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	command := node.Command{Args: args, Env: f.env, Dir: dir, In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	if len(args) > 0 && !f.shell {
		return n.Run(ctx, command)
	}
	command.Args = append([]string{"/bin/bash", "-i"}, args...)
	if !f.quiet {
		fmt.Fprintf(os.Stderr, "rdma-node: booted in %.1f s; exit or Ctrl-D ends it\n", n.BootTime.Seconds())
	}
	return interact(ctx, n, command)
}

// showConsole shows the console if the node itself failed.
func showConsole(n *node.Node, err error) {
	var died *node.DiedError
	if errors.Is(err, node.ErrTimeout) || errors.As(err, &died) {
		fmt.Fprintf(os.Stderr, "rdma-node: the console's last lines:\n%s\n", n.Console())
	}
}

func statusOf(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, node.ErrTimeout):
		return exitTimeout
	case errors.Is(err, context.Canceled):
		return 128 + int(syscall.SIGINT)
	}
	return exitFailed
}
