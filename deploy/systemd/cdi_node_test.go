// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const (
	cdiFile = "/var/run/cdi/rdma.yaml"
	// cdiRuns has the exit status of each run: systemd forgets a unit that does not run.
	cdiRuns = "/run/cdi-runs"
)

// TestNodeCDI runs the units of the CDI file under a real systemd, and sees that their hardening leaves them what they
// need, and that the file follows HCAs that come and go, and ports that go down.
func TestNodeCDI(t *testing.T) { besideSystemd(t, installCDIUnits, testCDIUnits) }

func installCDIUnits(t *testing.T) {
	t.Helper()
	installPrograms(t, "rdma-spec", "rdma-hook")
	installUnits(t, "rdma-spec-cdi.service", "rdma-spec-cdi.timer")
	scratch.File(t, "/etc/udev/rules.d/90-rdma-spec-cdi.rules", scratch.Read(t, "90-rdma-spec-cdi.rules"), 0o644)
	scratch.File(t, units+"/rdma-spec-cdi.service.d/node.conf",
		"[Service]\nExecStopPost=+/bin/sh -c 'echo ${EXIT_STATUS} >>"+cdiRuns+"'\n", 0o644)
	scratch.File(t, units+"/rdma-spec-cdi.timer.d/node.conf",
		"[Timer]\nOnActiveSec=\nOnUnitInactiveSec=\nOnActiveSec=1s\nOnUnitInactiveSec=1s\nAccuracySec=100ms\n", 0o644)
}

func testCDIUnits(t *testing.T) {
	t.Cleanup(func() { _ = os.Remove(cdiFile) })
	systemd.Manage(t, "enable", "rdma-spec-cdi.service")
	t.Cleanup(func() { systemd.Manage(t, "disable", "rdma-spec-cdi.service") })
	const (
		rxe1 = `(?m)^  name: rxe1$`
		all  = `(?m)uverbs1\n(    .*\n)*  name: all$`
	)
	bootsBeforeItsDriver(t)
	expectFile(t, rxe1, true)
	expectFile(t, all, true)

	// it is there if all is well
	t.Cleanup(func() { _ = exec.Command("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dummy1").Run() })
	const soon = 2 * time.Second
	gone, back := time.Hour, time.Hour
	for range 3 { // three tries, for a busy host: a wait that rdma-spec causes is in each
		gone = min(gone, waits(t, rxe1, false, "rdma", "link", "del", "rxe1"))
		back = min(back, waits(t, rxe1, true, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "dummy1"))
		if gone <= soon && back <= soon {
			break
		}
	}
	if gone > soon || back > soon {
		t.Errorf("an HCA goes, and comes: the file is right after waits of %s and %s, want %s at most", gone, back, soon)
	}

	await.That(t, await.Timeout, "the service has done its work", idle(t))
	last := scratch.Read(t, cdiRuns)
	for range 1000 {
		device, err := os.OpenFile("/dev/infiniband/uverbs0", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = device.Close() // nothing was written
	}
	onNode(t, "udevadm", "settle")
	if now := scratch.Read(t, cdiRuns); now != last {
		t.Errorf("1,000 opens of a device have the service run: %s, before %s", now, last)
	}

	systemd.Manage(t, "start", "rdma-spec-cdi.timer")
	t.Cleanup(func() { onNode(t, "ip", "link", "set", "dummy1", "up") })
	onNode(t, "ip", "link", "set", "dummy1", "down")
	expectFile(t, all, false)
	onNode(t, "ip", "link", "set", "dummy1", "up")
	expectFile(t, all, true)
}

// bootsBeforeItsDriver starts udev and what starts at boot without HCAs, which come later, as with a driver's
// container.
func bootsBeforeItsDriver(t *testing.T) {
	t.Helper()
	const hcas = "/sys/class/infiniband"
	netdevs, err := filepath.Glob(hcas + "/*/ports/1/gid_attrs/ndevs/0")
	if err != nil || len(netdevs) < 2 {
		t.Fatalf("%d HCAs, %v", len(netdevs), err)
	}
	var adds [][]string
	for _, file := range netdevs {
		name, _, _ := strings.Cut(strings.TrimPrefix(file, hcas+"/"), "/")
		adds = append(adds, []string{"link", "add", name, "type", "rxe", "netdev", strings.TrimSpace(scratch.Read(t, file))})
		onNode(t, "rdma", "link", "del", name)
	}
	startUdev(t)
	systemd.Manage(t, "start", "rdma-spec-cdi.service") // as multi-user.target does, whose directories this systemd does not read
	await.That(t, await.Timeout, "the service has done its work", idle(t))
	if got := scratch.Read(t, cdiRuns); got != "1\n" {
		t.Errorf("the exit statuses of the service, without an HCA: %q, want 1", got)
	}
	time.Sleep(5 * time.Second)
	if _, err := os.Stat(cdiFile); err == nil || scratch.Read(t, cdiRuns) != "1\n" {
		t.Errorf("without an HCA, after 5 s: %v, and the exit statuses %q", err, scratch.Read(t, cdiRuns))
	}
	for _, add := range adds {
		onNode(t, "rdma", add...)
	}
}

// idle reports whether the service does not run.
func idle(t *testing.T) func() bool {
	t.Helper()
	return func() bool {
		return systemd.Manage(t, "show", "--property=ActiveState", "rdma-spec-cdi.service") == "ActiveState=inactive\n"
	}
}

// startUdev starts the udev daemon, which the node has none of by itself.
func startUdev(t *testing.T) {
	t.Helper()
	udev := exec.Command("/lib/systemd/systemd-udevd")
	udev.Stdout, udev.Stderr = t.Output(), t.Output()
	if err := udev.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = udev.Process.Kill() // it has no state
		_ = udev.Wait()         // it was killed
	})
	await.That(t, await.Timeout, "udev listens", func() bool {
		return exec.Command("udevadm", "control", "--ping").Run() == nil
	})
}

// expectFile waits until the file matches an expression, or does not.
func expectFile(t *testing.T, expression string, want bool) {
	t.Helper()
	var read time.Time // of the file that was read last: to read it all the time would take the CPU from whoever writes it
	err := errors.New("it is not there")
	await.Success(t, await.Timeout, fmt.Sprintf("the file matches %s: %t", expression, want), func() error {
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

// waits runs a command that changes the node, and returns how long the file then takes to follow, less the time in
// which the node's CPU is busy: it is emulated, and systemd's sandbox alone takes it seconds.
func waits(t *testing.T, expression string, want bool, name string, args ...string) time.Duration {
	t.Helper()
	// What changes at the end of a run, that run does not see: the timer finds it.
	onNode(t, "udevadm", "settle")
	await.That(t, await.Timeout, "the service has done its work", idle(t))
	onNode(t, name, args...)
	began, before := time.Now(), busy(t)
	expectFile(t, expression, want)
	took := time.Since(began)
	computes := busy(t) - before
	t.Logf("%s %q: the file is right after %s, in which the node computes for %s", name, args, took, computes)
	return took - computes
}

// busy returns how long the node's CPUs have been busy since boot.
func busy(t *testing.T) time.Duration {
	t.Helper()
	const tick = time.Second / 100 // USER_HZ
	var user, nice, system, idle, wait, interrupts, softInterrupts int64
	stat := scratch.Read(t, "/proc/stat")
	if _, err := fmt.Sscanf(stat, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &interrupts,
		&softInterrupts); err != nil {
		t.Fatalf("%v: %s", err, stat)
	}
	return time.Duration(user+nice+system+interrupts+softInterrupts) * tick
}

func onNode(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
}
