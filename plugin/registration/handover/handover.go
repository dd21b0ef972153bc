// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover passes a connection from a process to the one that replaces it, so that the other end of the
// connection notices nothing. It does not know what passes over the connection.
//
// Processes that replace each other meet in a directory. One of them is the owner: it holds a lock, has the connection,
// and listens at a socket. The others wait behind it. When the owner ends, it gives the connection and the lock, as
// descriptors, to a process that waits. If it ends without that, it releases the lock, or the kernel does, and a
// process that waits becomes the owner without a connection. So there is never more than one owner, whichever process
// is killed or hangs at whatever moment.
//
// These messages pass over the socket, each a JSON object behind its length:
//
//	waiter → owner   the version of the protocol
//	owner → waiter   an offer: what the waiter has to know to replace the owner; again whenever that changes
//	owner → waiter   the state, with the descriptors: nobody reads from the connection now
//	waiter → owner   one byte, once it has understood all of it. If this write succeeds, the connection is the waiter's.
//	                 If it fails, the connection is not, whatever became of the owner
//	waiter → owner   end: the owner may end, since another process listens at the socket
//
// An owner that waits in vain for that byte first makes the write fail, and then goes on with the connection as its
// own.
//
// A service of systemd has no process that waits, since systemd starts none before the last one has ended. There
// systemd keeps the connection meanwhile: see Store.
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
	// messageMost bounds a message in bytes: a state has what is known of each container of a node.
	messageMost = 64 << 20
	// readWithin is how long a process may take to read a message.
	readWithin = time.Second
	// joinAgain is the time until a process that found neither the lock nor an owner that listens tries again.
	joinAgain = 20 * time.Millisecond
)

// greetWithin is how long a process may take to greet another one. One that takes longer hangs, and is not waited for:
// if it ever goes on, there are two.
const greetWithin = 30 * time.Second

// listenWithin is how long the holder of the lock may take until it listens. One that takes longer has ended, and
// a process that hangs has a copy of the lock.
const listenWithin = time.Second

// ErrRefused means that the owner keeps its connection from this process: another version speaks another protocol.
var ErrRefused = errors.New("the process that has the connection does not hand it over")

// ErrHangs means that a process holds the lock and does not answer.
var ErrHangs = errors.New("another process does not answer")

// message is what processes send each other: one field of it.
type message struct {
	Protocol int             `json:"protocol,omitempty"`
	Offer    json.RawMessage `json:"offer,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	Refused  string          `json:"refused,omitempty"`
}

func send(to *net.UnixConn, m message) error { return sendWith(to, time.Now().Add(readWithin), m) }

// sendWith sends a message with descriptors, to a process that has to read it until some time.
func sendWith(to *net.UnixConn, until time.Time, m message, descriptors ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := to.SetWriteDeadline(until); err != nil {
		return err
	}
	defer func() { _ = to.SetWriteDeadline(time.Time{}) }() // if it fails, so does the next write
	text = append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	n, _, err := to.WriteMsgUnix(text, unix.UnixRights(descriptors...), nil)
	if err == nil && n < len(text) {
		_, err = to.Write(text[n:])
	}
	return err
}

// receive reads a message, with descriptors.
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
		return m, descriptors, fmt.Errorf("a message of %d bytes", length)
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

// SocketOf makes a connection of a descriptor, and closes that.
func SocketOf(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	_ = file.Close() // the connection has a copy
	if err != nil {
		return nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close() // it is of no use
		return nil, fmt.Errorf("a descriptor of a %T instead of a Unix socket", conn)
	}
	return socket, nil
}

// withDescriptor calls a function with a socket's own descriptor. (net.UnixConn.File would make a copy that blocks, and
// the socket with it.)
func withDescriptor(socket syscall.Conn, do func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	return errors.Join(raw.Control(func(fd uintptr) { done = do(int(fd)) }), done)
}

// trusted returns nil if the process at the other end is this process's user.
func trusted(c *net.UnixConn) error {
	return withDescriptor(c, func(fd int) error {
		other, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(other.Uid) != os.Geteuid() {
			err = fmt.Errorf("process %d at the other end runs as user %d", other.Pid, other.Uid)
		}
		return err
	})
}

// Peer returns the process that has made the other end of a connection, or listens there; 0 if this process's PID
// namespace does not have it.
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

// lock is what processes that replace each other share: its holder listens at the socket.
type lock struct {
	file, socket string
	greetWithin  time.Duration // greetWithin, but in tests
}

// newLock prepares a directory, which only this process's user may enter.
func newLock(directory, name string) (lock, error) {
	l := lock{
		file:        filepath.Join(directory, name+".lock"),
		socket:      filepath.Join(directory, name),
		greetWithin: greetWithin,
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return l, err
	}
	return l, os.Chmod(directory, 0o700) // of somebody else's directory, only root can
}

// try locks the file; nil if another process has the lock.
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
