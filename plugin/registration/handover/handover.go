// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover passes a connection from a process to the one that replaces it, so that the other end of the
// connection notices nothing. It knows nothing of what is said on the connection.
//
// Processes that replace each other meet in a folder. One of them owns the place: it holds the place's lock, has the
// connection, and listens at a socket. The others wait behind it. When the owner ends, it gives the connection and the
// lock, as descriptors, to a process that waits. If it ends without that, it unlocks the place, or the kernel does, and
// a process that waits becomes the owner with nothing in its hands. So there is never more than one owner, whichever
// process is killed or hangs at whatever moment.
//
// This is said at the socket, each word a JSON object behind its length:
//
//	waiter → owner   the version of the protocol
//	owner → waiter   an offer: what the waiter has to know to go on in the owner's place; again whenever that changes
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
	// mostWord bounds a word in bytes: a state has what is known of each container of a node.
	mostWord = 64 << 20
	// readWithin is how long a process may take to read a word.
	readWithin = time.Second
	// joinAgain is the time until a process that found neither the lock nor an owner that listens tries again.
	joinAgain = 20 * time.Millisecond
)

// greetWithin is how long a process may take to greet another one. One that takes longer hangs, and is not waited for:
// if it ever goes on, there are two. Tests have less time.
var greetWithin = 30 * time.Second

// listenWithin is how long the holder of a place's lock may take until it listens. One that takes longer has ended, and
// a process that hangs has a copy of the lock.
const listenWithin = time.Second

// ErrRefused means that the owner keeps its connection from this process: another version speaks another protocol.
var ErrRefused = errors.New("the process that has the connection does not give it to this one")

// ErrHangs means that a process holds the place and does not answer.
var ErrHangs = errors.New("another process does not answer")

// word is what processes say to each other: one field of it.
type word struct {
	Protocol int             `json:"protocol,omitempty"`
	Offer    json.RawMessage `json:"offer,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
	Refused  string          `json:"refused,omitempty"`
}

// say writes a word.
func say(to *net.UnixConn, w word) error { return sayWith(to, time.Now().Add(readWithin), w) }

// sayWith writes a word with descriptors, to a process that has to read it until some time.
func sayWith(to *net.UnixConn, until time.Time, w word, descriptors ...int) error {
	text, err := json.Marshal(w)
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

// hear reads a word, with descriptors.
func hear(from *net.UnixConn) (w word, descriptors []*os.File, err error) {
	size, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(2*4))
	n, control, _, _, err := from.ReadMsgUnix(size, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return w, nil, err
	}
	if descriptors, err = received(rights[:control]); err != nil {
		return w, nil, err
	}
	if _, err = io.ReadFull(from, size[n:]); err == nil {
		length := binary.BigEndian.Uint32(size)
		if length > mostWord {
			return w, descriptors, fmt.Errorf("a word of %d bytes", length)
		}
		text := make([]byte, length)
		if _, err = io.ReadFull(from, text); err == nil {
			err = json.Unmarshal(text, &w)
		}
	}
	return w, descriptors, err
}

func received(control []byte) (files []*os.File, err error) {
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
			err = fmt.Errorf("the process %d at the other end is of user %d", other.Pid, other.Uid)
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

// place is where processes meet.
type place struct{ socket, lock string }

// at prepares a folder, which only this process's user may enter.
func at(folder, name string) (place, error) {
	p := place{filepath.Join(folder, name), filepath.Join(folder, name+".lock")}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return p, err
	}
	return p, os.Chmod(folder, 0o700) // of somebody else's folder, only root can
}

// tryLock returns the lock of a place; nil if another process has it.
func (p place) tryLock() (*os.File, error) {
	file, err := os.OpenFile(p.lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close() // it was not locked
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot lock %s: %w", p.lock, err)
	}
	return file, nil
}
