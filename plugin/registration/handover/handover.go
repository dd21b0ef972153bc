// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover passes a connection from a process to the process that replaces it, without the other end of the
// connection noticing. The package is independent of the connection's protocol.
//
// Processes that replace each other share a directory. One of the processes is the owner. The owner holds a lock, has
// the connection, and listens on a socket. The other processes are waiters. When the owner exits, it passes the
// descriptors of the connection and the lock to a waiter. If the owner exits without passing the descriptors, the owner
// or the kernel releases the lock, and a waiter becomes the owner without a connection. The lock ensures that at most
// one process is the owner, even if a process is killed or hangs.
//
// The processes exchange the following messages over the socket. The first three messages are JSON objects. Each JSON
// object follows its length.
//
//	waiter → owner   the protocol version
//	owner → waiter   an offer: the information that the waiter needs to replace the owner; resent after each change
//	owner → waiter   the state, with the descriptors; the owner no longer reads from the connection
//	waiter → owner   one byte, after the waiter has decoded the state. If this write succeeds, the waiter has the
//	                 connection. If the write fails, the waiter does not have the connection, even if the owner has
//	                 exited
//	waiter → owner   end of data: the owner can exit, because the waiter listens on the socket
//
// If the waiter's byte does not arrive in time, the owner first makes the waiter's write fail, and then continues to
// use the connection.
//
// A systemd service has no waiter, because systemd starts the next process only after the previous process has exited.
// Between the two processes, systemd keeps the connection (see Store).
package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	protocol = 1
	// messageMost is the maximum size of a message, in bytes. A state is large, because it contains data about each
	// container on a node.
	messageMost = 64 << 20
	// readWithin is the time limit for a process to read a message.
	readWithin = time.Second
	// joinAgain is the delay before a retry if another process holds the lock, but no owner is listening.
	joinAgain = 20 * time.Millisecond
)

// greetWithin is the time limit for a process to send its first message. A process that exceeds the limit is considered
// hung, and no other process waits for it. If the hung process ever resumes, two processes have a connection.
const greetWithin = 30 * time.Second

// listenWithin is the time limit for the holder of the lock to start listening. If the limit is exceeded, the holder
// has exited, and a hung process has a copy of the lock.
const listenWithin = time.Second

// ErrRefused means that the owner does not pass its connection to this process, because the two processes use different
// versions of the protocol.
var ErrRefused = errors.New("the owner of the connection refused the handover")

// ErrHangs means that another process holds the lock and does not respond.
var ErrHangs = errors.New("another process holds the handover lock and does not respond")

// message is a message between two processes. Exactly one field of a message is set.
type message struct {
	Protocol int             `json:"protocol,omitempty"`
	Offer    json.RawMessage `json:"offer,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	Refused  string          `json:"refused,omitempty"`
}

func send(to *net.UnixConn, m message) error { return sendWith(to, time.Now().Add(readWithin), m) }

// sendWith sends a message with descriptors. If the other process does not read the message by the given time, sendWith
// returns an error.
func sendWith(to *net.UnixConn, until time.Time, m message, descriptors ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := to.SetWriteDeadline(until); err != nil {
		return err
	}
	defer func() { _ = to.SetWriteDeadline(time.Time{}) }() // on failure, the next write fails, too
	text = append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	n, _, err := to.WriteMsgUnix(text, unix.UnixRights(descriptors...), nil)
	if err == nil && n < len(text) {
		_, err = to.Write(text[n:])
	}
	return err
}

// receive reads a message and its descriptors.
func receive(from *net.UnixConn) (m message, descriptors []*os.File, err error) {
	size := make([]byte, 4)
	rights := make([]byte, unix.CmsgSpace(2*4))
	n, control, _, _, err := from.ReadMsgUnix(size, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return m, nil, err
	}
	descriptors, err = descriptorsOf(rights[:control])
	if err != nil {
		return m, nil, err
	}
	if _, err := io.ReadFull(from, size[n:]); err != nil {
		return m, descriptors, err
	}
	length := binary.BigEndian.Uint32(size)
	if length > messageMost {
		return m, descriptors, fmt.Errorf("the message is too long: %d bytes", length)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(from, text); err != nil {
		return m, descriptors, err
	}
	err = json.Unmarshal(text, &m)
	return m, descriptors, err
}

func descriptorsOf(control []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		descriptors, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, d := range descriptors { // package net has already set close-on-exec
			files = append(files, os.NewFile(uintptr(d), ""))
		}
	}
	return files, err
}

// SocketOf returns the connection to which a descriptor refers, and closes the descriptor.
func SocketOf(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	_ = file.Close() // the connection has its own copy
	if err != nil {
		return nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close() // the connection cannot be used
		return nil, fmt.Errorf("the descriptor is a %T, not a Unix socket", conn)
	}
	return socket, nil
}

// withDescriptor calls a function with a socket's own descriptor. net.UnixConn.File is not suitable, because it returns
// a copy of the descriptor, and changes the socket to blocking mode.
func withDescriptor(socket syscall.Conn, do func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	return errors.Join(raw.Control(func(fd uintptr) { done = do(int(fd)) }), done)
}

// trusted returns nil if the process at the other end is running as the same user as this process.
func trusted(c *net.UnixConn) error {
	return withDescriptor(c, func(fd int) error {
		other, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(other.Uid) != os.Geteuid() {
			err = fmt.Errorf("process %d at the other end of the socket is running as user %d", other.Pid, other.Uid)
		}
		return err
	})
}

// Peer returns the PID of the process that created or listens on the other end of a connection. If that process is not
// in this process's PID namespace, Peer returns 0.
func Peer(c *net.UnixConn) (pid int, err error) {
	err = withDescriptor(c, func(fd int) error {
		other, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid = int(other.Pid)
		}
		return err
	})
	return pid, err
}

// lock is the lock that ensures a single owner. The holder of the lock listens on the socket.
type lock struct {
	file, socket string
	greetWithin  time.Duration // the constant greetWithin, except in tests
}

// newLock creates the directory, and restricts access to the directory to this process's user.
func newLock(directory, name string) (lock, error) {
	l := lock{
		file:        filepath.Join(directory, name+".lock"),
		socket:      filepath.Join(directory, name),
		greetWithin: greetWithin,
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return l, err
	}
	return l, os.Chmod(directory, 0o700) // fails if another user owns the directory, except as root
}

// try locks the file. If another process holds the lock, try returns nil.
func (l lock) try() (*os.File, error) {
	file, err := os.OpenFile(l.file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close() // the file was not locked
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot lock %s: %w", l.file, err)
	}
	return file, nil
}
