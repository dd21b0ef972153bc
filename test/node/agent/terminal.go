// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/creack/pty"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

// terminal is a pseudoterminal: the command has the slave, and the agent has the master.
type terminal struct{ master, slave *os.File }

func openTerminal(size wire.Size) (*terminal, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	t := &terminal{master, slave}
	if err := t.resize(size); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *terminal) resize(size wire.Size) error {
	return pty.Setsize(t.master, &pty.Winsize{Rows: size.Rows, Cols: size.Columns})
}

// attach makes the terminal the command's controlling terminal.
func (t *terminal) attach(command *exec.Cmd) {
	command.Stdin = t.slave
	command.Stdout = t.slave
	command.Stderr = t.slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// copyOutput copies what is written to the terminal, until the last process in the guest that has it open closes it.
// The kernel then answers a read with EIO.
func (t *terminal) copyOutput(to io.Writer) {
	_ = t.slave.Close()
	_, _ = io.Copy(to, t.master)
}

func (t *terminal) close() {
	if t != nil {
		_ = t.master.Close()
		_ = t.slave.Close() // the command has ended
	}
}
