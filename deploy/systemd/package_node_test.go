// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The directories that packages and administrators put units into.
const (
	packagedUnits = "/usr/lib/systemd/system"
	ownUnits      = "/etc/systemd/system"
)

// TestNodePackage installs the packages of a release under a real systemd inside the node, upgrades and downgrades
// them, and removes them, also where systemd refuses what their scripts ask for.
func TestNodePackage(t *testing.T) {
	besideSystemd(t, installDpkg, testPackage, ownUnits, packagedUnits)
}

// installDpkg removes what other tests have installed by hand, and gives the node the host's list of packages, which
// the node's own disk hides, and a systemd without the units of other packages.
func installDpkg(t *testing.T) {
	t.Helper()
	for _, dir := range []string{units, filepath.Dir(config)} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	const root = "/run/below" // the root without what is mounted on it
	mount(t, "/", root, "", syscall.MS_BIND)
	mount(t, filepath.Join(root, "var/lib/dpkg"), "/var/lib/dpkg", "", syscall.MS_BIND)
	mount(t, "none", packagedUnits, "tmpfs", 0)
	scratch.File(t, units+"/nri-rdma.service.d/node.conf", "[Service]\nStandardError=append:"+pluginLog+"\n", 0o644)
}

// mount mounts something on a directory, which it makes where there is none. It goes with the test.
func mount(t *testing.T, source, dir, kind string, flags uintptr) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(source, dir, kind, flags, ""); err != nil {
		t.Fatalf("mount %s on %s: %v", source, dir, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func testPackage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // an emulated CPU on a busy host
	defer cancel()
	deb := packaged(t, "release", "deb")
	ctrd, err := containerd.Start(ctx, containerd.Options{Version: "2.4.2", Runtime: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctrd.Stop)

	later := packaged(t, "later", "deb")
	testPolicies(t, deb)
	testPurgeBesideAPod(t, deb)
	for _, m := range managers {
		testTroubles(t, m)
	}
	testRPM(t)
	onNode(t, "dpkg", "-i", deb)
	installed := awaitRegistered(t, 0)
	if got := systemd.Manage(t, "is-enabled", "nri-rdma"); got != "enabled\n" {
		t.Errorf("after the installation the service is %s", got)
	}

	const own = "memlock: 16Gi\n"
	scratch.File(t, config, own, 0o644)
	onNode(t, "dpkg", "-i", later)
	awaitRegistered(t, installed)
	if diff := cmp.Diff(own, scratch.Read(t, config)); diff != "" {
		t.Errorf("an upgrade changes the configuration, -before +after:\n%s", diff)
	}

	// Removed and installed again, it is as it was. A CDI file whose hook is gone does not stay, nor do metrics that
	// nobody writes again.
	const cdi, metrics = "/etc/cdi/rdma.yaml", "/var/lib/prometheus/node-exporter/rdma-spec.prom"
	scratch.File(t, cdi, "hooks: [/usr/bin/rdma-hook]\n", 0o644)
	t.Cleanup(func() { _ = os.Remove(cdi) })
	scratch.File(t, metrics, "", 0o644)
	onNode(t, "systemctl", "enable", "--now", "rdma-spec-doctor.timer")
	onNode(t, "dpkg", "-r", "rdma-spec")
	if got := systemd.Manage(t, "show", "--property=ActiveState", "rdma-spec-doctor.timer"); got != "ActiveState=inactive\n" {
		t.Errorf("after the removal the doctor's timer says %s", got)
	}
	for _, file := range []string{cdi, metrics} {
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("after the removal there is %s", file)
		}
	}
	onNode(t, "dpkg", "-i", deb)
	awaitRegistered(t, 0)
	if got := systemd.Manage(t, "is-enabled", "nri-rdma"); got != "enabled\n" {
		t.Errorf("installed again the service is %s", got)
	}

	listed, err := exec.Command("dpkg", "-L", "rdma-spec").Output()
	if err != nil {
		t.Fatal(err)
	}
	onNode(t, "dpkg", "--purge", "rdma-spec")
	paths := append(strings.Fields(string(listed)), "/etc/rdma-spec", "/run/rdma-spec", ownUnits+
		"/multi-user.target.wants/nri-rdma.service",
		ownUnits+"/timers.target.wants/rdma-spec-doctor.timer")
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && (!info.IsDir() || strings.Contains(path, "rdma-spec")) {
			t.Errorf("after the purge there is %s", path)
		}
	}
	want := "MainPID=0\nLoadState=not-found\nActiveState=inactive\n"
	if diff := cmp.Diff(want, systemd.Manage(t, "show", "--property=MainPID,LoadState,ActiveState", "nri-rdma")); diff != "" {
		t.Errorf("after the purge, -want +got:\n%s", diff)
	}
}

// testPolicies: a preset decides whether the service is enabled, and policy-rc.d, as where an image is built, whether
// it is started.
func testPolicies(t *testing.T, deb string) {
	const preset, policy = "/etc/systemd/system-preset/10-test.preset", "/usr/sbin/policy-rc.d"
	for _, test := range []struct{ file, text, enabled string }{
		{preset, "disable nri-rdma.service\n", "disabled\n"}, {policy, "#!/bin/sh\nexit 101\n", "enabled\n"},
	} {
		scratch.File(t, test.file, test.text, 0o755)
		onNode(t, "dpkg", "-i", deb)
		wantStopped(t, test.file, test.enabled)
		if err := os.Remove(test.file); err != nil {
			t.Fatal(err)
		}
		onNode(t, "dpkg", "--purge", "rdma-spec")
	}
}

// testPurgeBesideAPod: the directory that a running pod of the chart mounts stays the same one, or the next pod would
// wait in another.
func testPurgeBesideAPod(t *testing.T, deb string) {
	const directory = "/run/rdma-spec"
	onNode(t, "dpkg", "-i", deb)
	pod := filepath.Join(directory, "handover/plugin-of-a-pod")
	scratch.File(t, pod, "", 0o600)
	before, err := os.Stat(directory)
	if err != nil {
		t.Fatal(err)
	}
	onNode(t, "dpkg", "--purge", "rdma-spec")
	if after, err := os.Stat(directory); err != nil || !os.SameFile(before, after) {
		t.Errorf("the purge has replaced %s under a running pod: %v", directory, err)
	}
	if _, err := os.Stat(pod); err != nil {
		t.Errorf("the purge has removed what a pod wrote: %v", err)
	}
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
}

// wantStopped checks that the service does not run, and whether it is enabled.
func wantStopped(t *testing.T, what, enabled string) {
	t.Helper()
	out, _ := exec.Command("systemctl", "is-enabled", "nri-rdma").Output() // an error where it is disabled
	got := systemd.Manage(t, "show", "--property=ActiveState", "nri-rdma")
	if string(out) != enabled || got != "ActiveState=inactive\n" {
		t.Errorf("with %s the service is %s, and %s; want %s, and not running", what, out, got, enabled)
	}
}

// packaged returns the package of a directory of bin for amd64, or x86_64.
func packaged(t *testing.T, dir, format string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(*bin, dir, "rdma-spec*64."+format))
	found = slices.DeleteFunc(found, func(file string) bool { return !regexp.MustCompile("(amd64|x86_64)").MatchString(file) })
	if err != nil || len(found) != 1 {
		t.Fatalf("bin/%s has %q, %v; want one %s for amd64: run make node-package", dir, found, err, format)
	}
	return found[0]
}
