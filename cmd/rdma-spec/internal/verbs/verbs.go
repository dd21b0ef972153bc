// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verbs registers memory with an HCA through the kernel's verbs interface, without libibverbs. The package
// writes commands to /dev/infiniband/uverbsN, and the kernel writes responses to the caller's memory.
//
// The package tests whether a registration succeeds. Without queue pairs, it cannot perform RDMA. Supported lists the
// supported drivers. Other drivers require their own data in GET_CONTEXT, and refuse a context without this data. The
// package also determines the libibverbs provider that a driver requires, and the provider's paths in images.
//
// The commands and their layouts are from include/uapi/rdma/ib_user_verbs.h, ABI version 6.
package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Error is a failed command. Err is the kernel's error number, if any.
//
// For GET_CONTEXT, EAGAIN means that the cgroup controller rdma allows no more contexts, or that the HCA is being
// reset. EINVAL, ENOSPC, and EOPNOTSUPP mean that the driver expects different data. EIO and ENODEV mean that the HCA
// is gone. For REG_MR, ENOMEM means that RLIMIT_MEMLOCK is too low and CAP_IPC_LOCK has no effect, or that pages cannot
// be pinned.
type Error struct {
	Command string // as in ib_user_verbs.h: REG_MR
	Err     error
}

// Error implements error.
func (e *Error) Error() string { return e.Command + ": " + e.Err.Error() }

// Unwrap returns the kernel's error.
func (e *Error) Unwrap() error { return e.Err }

// errNoResponse means that the kernel accepted a command, but did not write a response.
var errNoResponse = errors.New("the kernel did not write a response")

// device receives commands. write makes the kernel execute a command. The response has the length of the slice.
type device interface {
	write(command, response []byte) error
	close(fd int) error // a file descriptor that the kernel has created
	Close() error
}

// Context is an open HCA. Close removes all registrations of the context.
type Context struct {
	device  device
	dialect dialect
	events  int // the file descriptor of asynchronous events
}

// Open opens a verbs device, such as /dev/infiniband/uverbs0, and creates a context. It returns errors of open(2)
// unchanged.
func Open(path string, driver Driver) (*Context, error) {
	if !Supported(driver) {
		return nil, fmt.Errorf("driver %q: unknown context layout", driver)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return newContext(file(fd), dialects[driver])
}

func newContext(d device, with dialect) (*Context, error) {
	c := &Context{device: d, dialect: with}
	events, err := c.handle(getContext, contextSize+with.contextRoom, with.context...)
	if err != nil {
		_ = d.Close() // the command's error is the one to report
		return nil, err
	}
	c.events = int(events)
	return c, nil
}

// Close closes the context. The kernel then frees all objects of the context.
func (c *Context) Close() error { return errors.Join(c.device.close(c.events), c.device.Close()) }

// Register registers memory like an RDMA program, so that the HCA can read and write the memory, and then deregisters
// it. In the meantime, all of the memory is pinned. The memory must come from mmap, not from Go's heap.
func (c *Context) Register(memory []byte) (err error) {
	if len(memory) == 0 {
		return &Error{regMR.String(), unix.EINVAL}
	}
	pd, err := c.handle(allocPD, pdSize+c.dialect.pdRoom)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.send(deallocPD, nil, pd)) }()
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	mr, err := c.handle(regMR, mrSize+c.dialect.mrRoom, registration(start, uint64(len(memory)), pd,
		c.dialect.registration)...)
	if err != nil {
		return err
	}
	return c.send(deregMR, nil, mr)
}

// handle runs a command whose response begins with a handle.
func (c *Context) handle(cmd command, size int, input ...uint32) (uint32, error) {
	response := bytes.Repeat([]byte{unwritten & 0xff}, size)
	if err := c.send(cmd, response, input...); err != nil {
		return 0, err
	}
	handle := binary.NativeEndian.Uint32(response)
	if handle == unwritten {
		return 0, &Error{cmd.String(), errNoResponse}
	}
	return handle, nil
}

func (c *Context) send(cmd command, response []byte, input ...uint32) error {
	if err := c.device.write(encode(cmd, len(response), input...), response); err != nil {
		return &Error{cmd.String(), err}
	}
	return nil
}

// file is an open verbs device.
type file int

// write implements device. The response must not move in memory, because the kernel writes the response during
// write(2).
func (f file) write(command, response []byte) error {
	if len(response) > 0 {
		var pinned runtime.Pinner
		defer pinned.Unpin()
		pinned.Pin(unsafe.SliceData(response))
		point(command, uintptr(unsafe.Pointer(unsafe.SliceData(response))))
	}
	n, err := unix.Write(int(f), command)
	if err == nil && n != len(command) {
		err = fmt.Errorf("the kernel accepted only %d of %d bytes", n, len(command))
	}
	return err
}

// close implements device.
func (f file) close(fd int) error { return unix.Close(fd) }

// Close implements device.
func (f file) Close() error { return unix.Close(int(f)) }
