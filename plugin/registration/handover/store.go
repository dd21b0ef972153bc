// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// What systemd keeps of a service between two of its processes, by name: the connection, and the state.
const (
	storedConnection = "connection"
	storedState      = "state"
)

// Store has systemd keep the connection until the service's next process takes it: FileDescriptorStoreMax= of its unit
// must be 2 at least. No process may be reading from the connection, and this one must end. A service that is stopped
// leaves nothing in the store.
func Store(connection *net.UnixConn, state json.RawMessage) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return errors.New("not a systemd service")
	}
	fd, err := unix.MemfdCreate(storedState, unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), storedState)
	defer func() { _ = memory.Close() }() // systemd has a copy
	if _, err := memory.Write(state); err != nil {
		return err
	}
	if err := notify("FDSTORE=1\nFDNAME="+storedState, fd); err != nil {
		return err
	}
	return errors.Join(withDescriptor(connection, func(fd int) error {
		return notify("FDSTORE=1\nFDNAME="+storedConnection, fd)
	}), barrier())
}

// Stored returns what systemd has kept for this process, and has systemd forget it; nil if there is nothing.
func Stored() (*net.UnixConn, json.RawMessage, error) {
	var connection *net.UnixConn
	var state json.RawMessage
	var failed error
	files := activation.Files(true)
	for _, file := range files {
		var err error
		switch file.Name() {
		case storedConnection:
			connection, err = SocketOf(file)
		case storedState:
			state, err = io.ReadAll(io.NewSectionReader(file, 0, messageMost))
			err = errors.Join(err, file.Close())
		}
		failed = errors.Join(failed, err)
	}
	if len(files) == 0 {
		return nil, nil, nil
	}
	// As long as systemd has a copy, the runtime does not notice the end of this process, and the next one would begin
	// within a message. Of a connection that has ended, systemd has dropped its copy, and the state would keep later ones
	// out.
	failed = errors.Join(failed, notify("FDSTOREREMOVE=1\nFDNAME="+storedConnection), notify("FDSTOREREMOVE=1\nFDNAME="+
		storedState), barrier())
	if connection == nil {
		return nil, nil, failed
	}
	if failed != nil || state == nil {
		_ = connection.Close() // the runtime sees that
		return nil, nil, fmt.Errorf("the connection that systemd kept cannot be used: %w", failed)
	}
	return connection, state, nil
}

// barrier returns when systemd has read all that was said before.
func barrier() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	read := os.NewFile(uintptr(ends[0]), "barrier")
	defer func() { _ = read.Close() }() // nothing was written
	err := notify("BARRIER=1", ends[1])
	_ = unix.Close(ends[1]) // systemd closes its copy when it has read it
	if err == nil {
		err = read.SetReadDeadline(time.Now().Add(time.Second))
	}
	if err != nil {
		return err
	}
	if _, err = read.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("systemd does not respond: %w", err)
}

// notify tells systemd something, which may take a second: where systemd does not read, its queue is full at some time.
func notify(what string, descriptors ...int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing is lost with it
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	return unix.Sendmsg(fd, []byte(what), unix.UnixRights(descriptors...),
		&unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}, 0)
}
