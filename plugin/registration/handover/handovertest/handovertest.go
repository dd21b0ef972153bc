// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handovertest provides fakes for tests of handovers: both ends of a connection, and a fake systemd that keeps
// the file descriptors of a service. Tests on nodes use the real systemd.
package handovertest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Pair returns the plugin's end and the runtime's end of a connection. Both ends are closed when the test ends.
func Pair(t *testing.T) (connection, runtime *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "")
		conn, err := net.FileConn(file)
		_ = file.Close() // the connection has its own copy
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = conn.Close() })
	}
	return ends[0], ends[1]
}

// Systemd is a fake systemd that keeps a service's file descriptors, by name.
type Systemd struct {
	socket *net.UnixConn
	mu     sync.Mutex
	kept   map[string]*os.File
	last   time.Time
}

// Start starts a Systemd that responds until the test ends. The test's process acts as the service.
func Start(t *testing.T) *Systemd {
	t.Helper()
	s := Hang(t)
	go s.serve()
	return s
}

// Hang creates the socket of a fake systemd that does not read from the socket.
func Hang(t *testing.T) *Systemd {
	t.Helper()
	path := filepath.Join(scratch.Dir(t), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &Systemd{socket: socket, kept: map[string]*os.File{}}
}

// Kept calls a function with the stored descriptors. The stored descriptors do not change during the call.
func (s *Systemd) Kept(do func(kept map[string]*os.File)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.kept)
}

// Last returns when a descriptor was last stored.
func (s *Systemd) Last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *Systemd) serve() {
	text := make([]byte, 4096)
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		n, with, _, _, err := s.socket.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		what, name, _ := strings.Cut(string(text[:n]), "\nFDNAME=")
		s.mu.Lock()
		switch what {
		case "FDSTORE=1":
			s.kept[name] = descriptor(rights[:with])
			s.last = time.Now()
		case "FDSTOREREMOVE=1":
			_ = s.kept[name].Close() // closing a nil file is harmless
			delete(s.kept, name)
		case "BARRIER=1":
			_ = descriptor(rights[:with]).Close()
		}
		s.mu.Unlock()
	}
}

// descriptor returns the file descriptor in a message; nil if the message contains none.
func descriptor(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "")
}
