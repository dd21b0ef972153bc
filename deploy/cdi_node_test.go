// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package deploy_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/await"
)

const cdiFile = "/etc/cdi/rdma.yaml"

// TestNodeCDI runs the units of the CDI file under a real systemd, and sees that their hardening leaves them what they need, and that the file
// follows HCAs that come and go, and ports that go down.
func TestNodeCDI(t *testing.T) { besideSystemd(t, installCDIUnits, testCDIUnits) }

func installCDIUnits(t *testing.T) {
	t.Helper()
	for _, name := range []string{"rdma-spec", "rdma-hook"} {
		program, err := os.ReadFile(filepath.Join(*bin, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, "/usr/local/bin/"+name, string(program), 0o755)
	}
	for _, name := range []string{"rdma-spec-cdi.service", "rdma-spec-cdi.path", "rdma-spec-cdi.timer"} {
		write(t, filepath.Join(units, name), read(t, "systemd/"+name), 0o644)
	}
	write(t, units+"/rdma-spec-cdi.timer.d/node.conf", "[Timer]\nOnActiveSec=\nOnUnitInactiveSec=\nOnActiveSec=1s\nOnUnitInactiveSec=1s\nAccuracySec=100ms\n", 0o644)
}

func testCDIUnits(t *testing.T) {
	t.Cleanup(func() { _ = os.Remove(cdiFile) })
	manage(t, "start", "rdma-spec-cdi.path", "rdma-spec-cdi.service")
	const (
		rxe1 = `(?m)^  - name: rxe1$`
		all  = `(?m)^  - name: all\n(    .*\n)*?.*uverbs1\n`
	)
	expectFile(t, rxe1, true)
	expectFile(t, all, true)

	t.Cleanup(func() { _ = exec.Command("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dummy1").Run() }) // it is there if all is well
	var waited []time.Duration
	for range 2 {
		waited = append(waited, followed(t, rxe1, false, "rdma", "link", "del", "rxe1"),
			followed(t, rxe1, true, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dummy1"))
	}
	const soon = 2 * time.Second
	if slices.Min(waited) > soon { // a wait by design is in each of them, however busy the node is
		t.Errorf("the file follows an HCA after %s, want %s", waited, soon)
	}

	manage(t, "start", "rdma-spec-cdi.timer")
	t.Cleanup(func() { onNode(t, "ip", "link", "set", "dummy1", "up") })
	onNode(t, "ip", "link", "set", "dummy1", "down")
	expectFile(t, all, false)
	onNode(t, "ip", "link", "set", "dummy1", "up")
	expectFile(t, all, true)
}

// expectFile waits until the file matches an expression, or does not.
func expectFile(t *testing.T, expression string, want bool) {
	t.Helper()
	var read time.Time // of the file that was read last: to read it all the time would take the CPU from whoever writes it
	err := errors.New("it is not there")
	await.Success(t, await.Patience, fmt.Sprintf("the file matches %s: %t", expression, want), func() error {
		info, statErr := os.Stat(cdiFile)
		if statErr != nil || info.ModTime().Equal(read) {
			return err
		}
		read = info.ModTime()
		text, readErr := os.ReadFile(cdiFile)
		err = readErr
		if err == nil && regexp.MustCompile(expression).Match(text) != want {
			err = fmt.Errorf("it is\n%s", text)
		}
		return err
	})
}

// followed runs a command that changes the node, and returns how long the file takes to follow. What the service computes meanwhile does
// not count: nearly all of that is systemd's sandbox, which takes seconds on an emulated CPU.
func followed(t *testing.T, expression string, want bool, name string, args ...string) time.Duration {
	t.Helper()
	onNode(t, name, args...)
	began := time.Now()
	expectFile(t, expression, want)
	took := time.Since(began)
	state := ""
	await.That(t, await.Patience, "the service has ended", func() bool {
		state = manage(t, "show", "--property=ActiveState,CPUUsageNSec", "rdma-spec-cdi.service")
		return strings.Contains(state, "ActiveState=inactive")
	})
	_, usage, _ := strings.Cut(state, "CPUUsageNSec=")
	var computed time.Duration
	if _, err := fmt.Sscan(usage, (*int64)(&computed)); err != nil {
		t.Fatalf("%v: %s", err, state)
	}
	t.Logf("%s %q: the file is right after %s, of which the service has computed for %s", name, args, took, computed)
	return took - computed
}

func onNode(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
}
