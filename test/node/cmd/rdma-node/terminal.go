// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

// interact runs a command on this process's terminal. If standard input is not a terminal, it connects the streams
// directly.
func interact(ctx context.Context, n *node.Node, command node.Command) (int, error) {
	descriptor := int(os.Stdin.Fd())
	if !term.IsTerminal(descriptor) {
		return n.Run(ctx, command)
	}
	// Each key goes to the guest's terminal, which handles echo, line editing, and signals. Its output can be shown
	// unchanged.
	before, err := term.MakeRaw(descriptor)
	if err != nil {
		return 0, err
	}
	defer func() { _ = term.Restore(descriptor, before) }()

	size := terminalSize(descriptor)
	command.Terminal = &size
	command.Env = append(command.Env, "TERM="+os.Getenv("TERM"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	command.Resized = resizes(ctx, descriptor)
	return n.Run(ctx, command)
}

// resizes reports the terminal's size each time it changes.
func resizes(ctx context.Context, descriptor int) <-chan wire.Size {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	sizes := make(chan wire.Size)
	go func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			select {
			case sizes <- terminalSize(descriptor):
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes
}

// terminalSize returns the terminal's size, or the traditional 80 by 24 if the size is unknown.
func terminalSize(descriptor int) wire.Size {
	columns, rows, err := term.GetSize(descriptor)
	if err != nil || rows == 0 {
		return wire.Size{Rows: 24, Columns: 80}
	}
	return wire.Size{Rows: uint16(rows), Columns: uint16(columns)}
}
