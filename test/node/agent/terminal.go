// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/node/wire"
)

// terminal is a pseudo terminal: the command holds one end, the agent the other.
type terminal struct {
	master, slave *os.File
}

func openTerminal(size wire.Size) (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t := &terminal{master: master}
	if err := t.openSlave(size); err != nil {
		t.close()
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	return t, nil
}

func (t *terminal) openSlave(size wire.Size) error {
	var number int
	err := t.control(func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if err != nil {
		return err
	}
	t.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return t.resize(size)
}

func (t *terminal) resize(size wire.Size) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
}

// control runs a call on the master's descriptor and leaves the file pollable,
// which (*os.File).Fd would not.
func (t *terminal) control(call func(fd int) error) error {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := conn.Control(func(fd uintptr) { result = call(int(fd)) }); err != nil {
		return err
	}
	return result
}

// attach makes the terminal the command's controlling terminal.
func (t *terminal) attach(command *exec.Cmd) {
	command.Stdin, command.Stdout, command.Stderr = t.slave, t.slave, t.slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// copyOutput copies what is written to the terminal until its last holder in
// the guest has closed it; the kernel then answers a read with EIO.
func (t *terminal) copyOutput(to io.Writer) {
	_ = t.slave.Close()
	_, _ = io.Copy(to, t.master)
}

func (t *terminal) close() {
	if t == nil {
		return
	}
	_ = t.master.Close()
	if t.slave != nil {
		_ = t.slave.Close()
	}
}
