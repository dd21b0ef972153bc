// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover passes a connection from a process to the process that replaces it, without the other end of the
// connection noticing. It does not know which protocol the connection uses.
//
// Processes that replace each other share a directory. One of them is the owner: it holds a lock, has the connection,
// and listens at a socket. The others are waiters. When the owner ends, it passes the descriptors of the connection and
// the lock to a waiter. If it ends without doing so, it releases the lock, or the kernel does, and a waiter becomes the
// owner without a connection. Thus there is never more than one owner, even if a process is killed or hangs.
//
// The processes exchange these messages over the socket. Each is a JSON object after its length:
//
//	waiter → owner   the protocol version
//	owner → waiter   an offer: what the waiter must know to replace the owner; resent whenever it changes
//	owner → waiter   the state, with the descriptors: the owner no longer reads from the connection
//	waiter → owner   one byte, after it has decoded the state. If this write succeeds, the waiter has the connection.
//	                 If it fails, the waiter does not have it, even if the owner has ended
//	waiter → owner   end of data: the owner can end, since the waiter listens at the socket
//
// If that byte does not arrive in time, the owner first makes the waiter's write fail, and then continues to use the
// connection.
//
// A systemd service has no waiter, since systemd starts the next process only after the previous one has ended. In
// between, systemd keeps the connection: see Store.
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
	// messageMost is the largest message, in bytes. A state contains data about each container on a node.
	messageMost = 64 << 20
	// readWithin is how long a process may take to read a message.
	readWithin = time.Second
	// joinAgain is the time until a process retries after it found that the lock is held, but that no owner is listening.
	joinAgain = 20 * time.Millisecond
)

// greetWithin is how long a process may take to send its first message. A process that takes longer is regarded as
// hung, and no other process waits for it. If it ever continues, there are two owners.
const greetWithin = 30 * time.Second

// listenWithin is how long the holder of the lock may take until it listens. If it takes longer, it has ended, and a
// hung process has a copy of the lock.
const listenWithin = time.Second

// ErrRefused means that the owner does not pass its connection to this process, because their versions use different
// protocols.
var ErrRefused = errors.New("the process with the connection refuses to hand it over")

// ErrHangs means that another process holds the lock and does not respond.
var ErrHangs = errors.New("another process holds the handover lock and does not respond")

// message is one message between processes. It has exactly one field.
type message struct {
	Protocol int             `json:"protocol,omitempty"`
	Offer    json.RawMessage `json:"offer,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	Refused  string          `json:"refused,omitempty"`
}

func send(to *net.UnixConn, m message) error { return sendWith(to, time.Now().Add(readWithin), m) }

// sendWith sends a message with descriptors. It returns an error if the other process has not read the message by the
// given time.
func sendWith(to *net.UnixConn, until time.Time, m message, descriptors ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := to.SetWriteDeadline(until); err != nil {
		return err
	}
	defer func() { _ = to.SetWriteDeadline(time.Time{}) }() // if this fails, the next write fails, too
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
		for _, d := range descriptors { // package net has set close-on-exec
			files = append(files, os.NewFile(uintptr(d), ""))
		}
	}
	return files, err
}

// SocketOf returns the connection with a descriptor, and closes the descriptor.
func SocketOf(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	_ = file.Close() // the connection has a copy
	if err != nil {
		return nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close() // it cannot be used
		return nil, fmt.Errorf("the descriptor is a %T, not a Unix socket", conn)
	}
	return socket, nil
}

// withDescriptor calls a function with a socket's own descriptor. (net.UnixConn.File would return a copy in blocking
// mode, and put the socket into blocking mode, too.)
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
			err = fmt.Errorf("process %d at the other end is running as user %d", other.Pid, other.Uid)
		}
		return err
	})
}

// Peer returns the PID of the process that created the other end of a connection, or that listens there; 0 if the
// process is not in this process's PID namespace.
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

// lock is the lock that processes that replace each other share. Its holder listens at the socket.
type lock struct {
	file, socket string
	greetWithin  time.Duration // the constant, except in tests
}

// newLock creates the directory, and makes it accessible only to this process's user.
func newLock(directory, name string) (lock, error) {
	l := lock{
		file:        filepath.Join(directory, name+".lock"),
		socket:      filepath.Join(directory, name),
		greetWithin: greetWithin,
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return l, err
	}
	return l, os.Chmod(directory, 0o700) // fails for another user's directory, except as root
}

// try locks the file. It returns nil if another process holds the lock.
func (l lock) try() (*os.File, error) {
	file, err := os.OpenFile(l.file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close() // it was not locked
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot lock %s: %w", l.file, err)
	}
	return file, nil
}
