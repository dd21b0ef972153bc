// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/registration/handover/handovertest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// next runs the service's next process, and returns what the process reports that it got.
func next(t *testing.T, systemd *handovertest.Systemd) string {
	t.Helper()
	program, err := os.Executable()
	must.Succeed(t, err)
	c := exec.Command("sh", "-c", "LISTEN_PID=$$ exec "+program)
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	systemd.Kept(func(kept map[string]*os.File) { // held until the process has started, since the process makes systemd close the descriptors
		var names []string
		for name, file := range kept {
			names, c.ExtraFiles = append(names, name), append(c.ExtraFiles, file)
		}
		c.Env = append(os.Environ(), asService+"=1", fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+
			strings.Join(names, ":"))
		err = c.Start()
	})
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return out.String()
}

// keepsNothing checks that systemd keeps nothing for the service any more.
func keepsNothing(t *testing.T, systemd *handovertest.Systemd) {
	t.Helper()
	systemd.Kept(func(kept map[string]*os.File) {
		if len(kept) > 0 {
			t.Errorf("systemd still has %v", kept)
		}
	})
}

// asService is an environment variable. If it is set, this test program is the next process of a service.
const asService = "RDMA_SPEC_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) == "" {
		os.Exit(m.Run())
	}
	connection, state, err := Stored()
	if connection != nil {
		_, err = fmt.Fprintf(connection, "hello")
	}
	fmt.Printf("connection %t, state %s, error %v", connection != nil, state, err)
}

// The next process gets what a process stored in systemd, and systemd no longer has it.
func TestStore(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	connection, runtime := handovertest.Pair(t)
	if err := Store(connection, nil); err == nil {
		t.Error("stored where there is no systemd")
	}
	systemd := handovertest.Start(t)
	if got, want := next(t, systemd), "connection false, state , error <nil>"; got != want {
		t.Errorf("the first process: %s, want %s", got, want)
	}
	state := `"` + strings.Repeat("x", 1<<20) + `"`
	must.Succeed(t, Store(connection, json.RawMessage(state)))
	_ = connection.Close() // the process ends
	if got, want := next(t, systemd), "connection true, state "+state+", error <nil>"; got != want {
		t.Errorf("the next process: %.100s, want %.100s", got, want)
	}
	keepsNothing(t, systemd)
	got := make([]byte, 10)
	if n, err := runtime.Read(got); err != nil || string(got[:n]) != "hello" {
		t.Errorf("the runtime reads %q, %v", got[:n], err)
	}
	if _, err := runtime.Read(got); err == nil { // no process has a copy any more
		t.Error("the runtime does not see the end of the last process")
	}
}

// A connection without its state cannot be used, and is closed.
func TestStore_Incomplete(t *testing.T) {
	connection, runtime := handovertest.Pair(t)
	systemd := handovertest.Start(t)
	err := withDescriptor(connection, func(fd int) error { return notify("FDSTORE=1\nFDNAME="+storedConnection, fd) })
	if err == nil {
		err = barrier()
	}
	must.Succeed(t, err)
	_ = connection.Close()
	if got, want := next(t, systemd), "connection false, state , error the connection that systemd kept cannot be used: "+
		"systemd did not keep the connection's state"; got != want {
		t.Errorf("the next process: %s, want %s", got, want)
	}
	if _, err := runtime.Read(make([]byte, 1)); err == nil {
		t.Error("the runtime does not see the end")
	}
}

// systemd drops a connection whose other end has gone. The state that belongs to it must not remain, because later
// processes could then store nothing.
func TestStore_EndedConnection(t *testing.T) {
	connection, _ := handovertest.Pair(t)
	systemd := handovertest.Start(t)
	must.Succeed(t, Store(connection, json.RawMessage(`1`)), notify("FDSTOREREMOVE=1\nFDNAME="+storedConnection),
		barrier())
	if got, want := next(t, systemd), "connection false, state , error <nil>"; got != want {
		t.Errorf("the next process: %s, want %s", got, want)
	}
	keepsNothing(t, systemd)
}

// If systemd hangs, a service can still end.
func TestStore_SystemdHangs(t *testing.T) {
	handovertest.Hang(t)
	connection, _ := handovertest.Pair(t)
	stored := make(chan error, 1)
	go func() {
		for { // until its queue is full
			if err := Store(connection, json.RawMessage("1")); errors.Is(err, unix.EAGAIN) {
				stored <- err
				return
			}
		}
	}()
	_ = await.Receive(t, await.Timeout, "an end of the storing", stored) // the error says why
}
