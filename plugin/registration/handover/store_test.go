// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// systemd keeps descriptors of a service as systemd does, which is tested itself on the node.
type systemd struct {
	*net.UnixConn
	mu    sync.Mutex
	names []string
	files []*os.File
}

// startSystemd starts one that answers.
func startSystemd(t *testing.T) *systemd {
	t.Helper()
	s := listen(t)
	go s.serve()
	return s
}

// listen makes the socket of a systemd that does not read from it.
func listen(t *testing.T) *systemd {
	t.Helper()
	path := folder(t) + ".notify"
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &systemd{UnixConn: socket}
}

func (s *systemd) serve() {
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for {
		n, control, _, _, err := s.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		files, _ := received(rights[:control])
		what, name, _ := strings.Cut(string(text[:n]), "\nFDNAME=")
		s.mu.Lock()
		switch what {
		case "FDSTORE=1":
			s.names, s.files = append(s.names, name), append(s.files, files...)
		case "FDSTOREREMOVE=1":
			if i := slices.Index(s.names, name); i >= 0 {
				_ = s.files[i].Close()
				s.names, s.files = slices.Delete(s.names, i, i+1), slices.Delete(s.files, i, i+1)
			}
		case "BARRIER=1":
			_ = files[0].Close()
		}
		s.mu.Unlock()
	}
}

// next runs the service's next process, which says what it got.
func (s *systemd) next(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c", "LISTEN_PID=$$ exec "+program)
	s.mu.Lock()
	c.ExtraFiles = slices.Clone(s.files)
	c.Env = append(os.Environ(), asService+"=1", fmt.Sprint("LISTEN_FDS=", len(s.files)), "LISTEN_FDNAMES="+
		strings.Join(s.names, ":"))
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	err = c.Start() // under the lock, since the process has serve close what it gets
	s.mu.Unlock()
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return out.String()
}

// asService is set where this test program is the next process of a service.
const asService = "RDMA_SPEC_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) == "" {
		greetWithin = time.Second
		os.Exit(m.Run())
	}
	connection, state, err := Stored()
	if connection != nil {
		_, err = fmt.Fprintf(connection, "hello")
	}
	fmt.Printf("connection %t, state %s, error %v", connection != nil, state, err)
}

// What a process leaves with systemd is the next one's, and systemd has it no more.
func TestStore(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	connection, runtime := pair(t)
	if err := Store(connection, nil); err == nil {
		t.Error("stored where there is no systemd")
	}
	s := startSystemd(t)
	if got, want := s.next(t), "connection false, state , error <nil>"; got != want {
		t.Errorf("the first process: %s, want %s", got, want)
	}
	state := `"` + strings.Repeat("x", 1<<20) + `"`
	if err := Store(connection, json.RawMessage(state)); err != nil {
		t.Fatal(err)
	}
	_ = connection.Close() // the process ends
	if got, want := s.next(t), "connection true, state "+state+", error <nil>"; got != want {
		t.Errorf("the next process: %.100s, want %.100s", got, want)
	}
	s.mu.Lock()
	if len(s.names) != 0 {
		t.Errorf("systemd still has %q", s.names)
	}
	s.mu.Unlock()
	got := make([]byte, 10)
	if n, err := runtime.Read(got); err != nil || string(got[:n]) != "hello" {
		t.Errorf("the runtime reads %q, %v", got[:n], err)
	}
	if _, err := runtime.Read(got); err == nil { // nobody has a copy any more
		t.Error("the runtime does not see the end of the last process")
	}
}

// A connection without its state cannot be used, and is closed.
func TestStoreIsIncomplete(t *testing.T) {
	connection, runtime := pair(t)
	s := startSystemd(t)
	err := withDescriptor(connection, func(fd int) error { return notify("FDSTORE=1\nFDNAME="+storedConnection, fd) })
	if err == nil {
		err = barrier()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = connection.Close()
	if got := s.next(t); !strings.HasPrefix(got,
		"connection false, state , error systemd has kept a connection that cannot be used") {
		t.Errorf("the next process: %s", got)
	}
	if _, err := runtime.Read(make([]byte, 1)); err == nil {
		t.Error("the runtime does not see the end")
	}
}

// systemd drops a connection whose other end has gone. What is left beside it does not stay, or later processes could
// store nothing.
func TestStoreOfAConnectionThatEnded(t *testing.T) {
	connection, _ := pair(t)
	s := startSystemd(t)
	if err := errors.Join(Store(connection, json.RawMessage(`1`)), notify("FDSTOREREMOVE=1\nFDNAME="+storedConnection),
		barrier()); err != nil {
		t.Fatal(err)
	}
	if got, want := s.next(t), "connection false, state , error <nil>"; got != want {
		t.Errorf("the next process: %s, want %s", got, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) != 0 {
		t.Errorf("systemd still has %q", s.names)
	}
}

// A systemd that hangs keeps no service from its end.
func TestStoreWhereSystemdHangs(t *testing.T) {
	listen(t)
	connection, _ := pair(t)
	stored := make(chan error, 1)
	go func() {
		for { // until its queue is full
			if err := Store(connection, json.RawMessage("1")); errors.Is(err, unix.EAGAIN) {
				stored <- err
				return
			}
		}
	}()
	_ = await.Receive(t, await.Patience, "an end of the storing", stored) // it tells why
}
