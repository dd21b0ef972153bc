// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	onNode(t, "rdma", "link", "del", "rxe1")
	expectFile(t, rxe1, false)
	onNode(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dummy1")
	expectFile(t, rxe1, true)

	manage(t, "start", "rdma-spec-cdi.timer")
	t.Cleanup(func() { onNode(t, "ip", "link", "set", "dummy1", "up") })
	onNode(t, "ip", "link", "set", "dummy1", "down")
	expectFile(t, all, false)
	onNode(t, "ip", "link", "set", "dummy1", "up")
	expectFile(t, all, true)
}

// expectFile waits until the file matches an expression, or does not, and logs how long that took.
func expectFile(t *testing.T, expression string, want bool) {
	t.Helper()
	began := time.Now()
	await.Success(t, await.Patience, fmt.Sprintf("the file matches %s: %t", expression, want), func() error {
		text, err := os.ReadFile(cdiFile)
		if err == nil && regexp.MustCompile(expression).Match(text) != want {
			err = fmt.Errorf("it is\n%s", text)
		}
		return err
	})
	t.Logf("%s: %t after %s", expression, want, time.Since(began))
}

func onNode(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
}
