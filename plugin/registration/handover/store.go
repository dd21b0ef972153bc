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

// storedConnection and storedState are the names of the descriptors that systemd keeps between two processes of a
// service.
const (
	storedConnection = "connection"
	storedState      = "state"
)

// Store makes systemd keep the connection until the service's next process calls Stored. FileDescriptorStoreMax= in the
// service's unit must be at least 2. No process may be reading from the connection. After Store has returned, this
// process must exit. When the service is stopped, systemd closes the connection. Store returns an error if the process
// is not a systemd service, or if systemd does not respond within a second.
func Store(connection *net.UnixConn, state json.RawMessage) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return errors.New("this process is not a systemd service")
	}
	fd, err := unix.MemfdCreate(storedState, unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), storedState)
	defer func() { _ = memory.Close() }() // systemd has its own copy
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

// Stored returns the connection and the state that systemd has kept for this process, and removes both from systemd. If
// systemd has kept no connection, the connection and the state are nil.
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
	// Remove the connection from systemd. While systemd has a copy of the connection, the runtime does not notice when
	// this process exits, and the next process would start to read in the middle of a message. If the connection has
	// ended, systemd has dropped the connection, but not the state. Remove the state as well, because it takes up space in
	// the store.
	failed = errors.Join(failed, notify("FDSTOREREMOVE=1\nFDNAME="+storedConnection), notify("FDSTOREREMOVE=1\nFDNAME="+
		storedState), barrier())
	if connection == nil {
		return nil, nil, failed
	}
	if failed == nil && state == nil {
		failed = errors.New("systemd did not keep the connection's state")
	}
	if failed != nil {
		_ = connection.Close() // the runtime notices the end of the connection
		return nil, nil, fmt.Errorf("the connection that systemd kept cannot be used: %w", failed)
	}
	return connection, state, nil
}

// barrier waits until systemd has processed all earlier notifications.
func barrier() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	read := os.NewFile(uintptr(ends[0]), "barrier")
	defer func() { _ = read.Close() }() // opened only for reading
	err := notify("BARRIER=1", ends[1])
	_ = unix.Close(ends[1]) // systemd closes its copy after processing the earlier notifications
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

// notify sends systemd a notification. If systemd does not read its notifications, the queue can be full, and notify
// waits up to a second.
func notify(what string, descriptors ...int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // no data is lost
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	return unix.Sendmsg(fd, []byte(what), unix.UnixRights(descriptors...),
		&unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}, 0)
}
