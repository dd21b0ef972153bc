// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verbs registers memory with an HCA through the kernel's verbs interface, without libibverbs: it writes
// commands to /dev/infiniband/uverbsN, and the kernel writes its responses to the caller's memory.
//
// It tests whether a registration succeeds. It cannot do RDMA, since it has no queue pairs. It supports the drivers in
// Supported. Other drivers require their own data in GET_CONTEXT, and refuse a context without it. It also knows which
// provider of libibverbs a driver needs, and where images contain it.
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

// Error is a command that failed. Err is the kernel's error number where there is one.
//
// Of GET_CONTEXT, EAGAIN means that the cgroup controller rdma allows no more contexts, or that the HCA is being reset;
// EINVAL, ENOSPC and EOPNOTSUPP that the driver expects other data; EIO and ENODEV that the HCA is gone. Of REG_MR,
// ENOMEM means that RLIMIT_MEMLOCK does not suffice and CAP_IPC_LOCK does not count, or that pages cannot be pinned.
type Error struct {
	Command string // as in ib_user_verbs.h: REG_MR
	Err     error
}

// Error implements error.
func (e *Error) Error() string { return e.Command + ": " + e.Err.Error() }

// Unwrap returns the kernel's error.
func (e *Error) Unwrap() error { return e.Err }

// errNoResponse means that the kernel accepted a command, and did not write its response.
var errNoResponse = errors.New("the kernel did not write a response")

// device is where commands go. write has the kernel carry out a command, whose response has the length of the slice.
type device interface {
	write(command, response []byte) error
	close(fd int) error // a file descriptor that the kernel has made
	Close() error
}

// Context is an open HCA. Whatever is registered in it ends with Close.
type Context struct {
	device  device
	dialect dialect
	events  int // the file descriptor of asynchronous events
}

// Open opens a verbs device, such as /dev/infiniband/uverbs0, and makes a context. The errors of open(2) are returned
// as they are.
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

// Close ends the context, and the kernel frees all that was made in it.
func (c *Context) Close() error { return errors.Join(c.device.close(c.events), c.device.Close()) }

// Register registers memory as an RDMA program does, so that the HCA may read and write it, and takes that back. The
// memory is pinned meanwhile, all of it. It must not be Go's: make it with mmap.
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

// write implements device. The kernel writes the response while write(2) runs, so it must not move.
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
