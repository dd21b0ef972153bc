// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// manager is a package manager, as administrators call it.
type manager struct {
	format  string
	install []string // upgrades and downgrades as well, with a file behind it
	remove  []string
	state   []string // prints sound where the package is wholly installed
	sound   string
}

var rpm = []string{"rpm", "--dbpath", "/run/rpm", "--nodeps", "--force-debian"}

var managers = []manager{
	{"deb", []string{"dpkg", "-i"}, []string{"dpkg", "--purge", "rdma-spec"},
		[]string{"dpkg-query", "-W", "-f", "${Status}", "rdma-spec"}, "install ok installed"},
	{"rpm", append(slices.Clone(rpm), "-U", "--oldpackage"), append(slices.Clone(rpm), "-e", "rdma-spec"),
		append(slices.Clone(rpm[:3]), "-q", "--qf", "%{NAME}", "rdma-spec"), "rdma-spec"},
}

// troubles are states of a node in which systemd refuses what a package's scripts ask for.
var troubles = []struct {
	name    string
	file    string // that makes the trouble: a unit, or a drop-in
	content string // "" is a link to /dev/null, which masks a unit
	within  []string
}{
	{name: "a masked unit", file: ownUnits + "/nri-rdma.service"},
	{name: "a unit that fails", file: ownUnits + "/nri-rdma.service.d/90-fails.conf",
		content: "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=no\n"},
	{name: "no systemd", within: []string{"unshare", "--mount", "sh", "-ec", `mount -t tmpfs none /run/systemd; exec "$@"`, "sh"}},
}

// testTroubles: whatever systemd refuses, the package manager installs, upgrades, downgrades and removes the package,
// and says what was refused.
func testTroubles(t *testing.T, m manager) {
	for _, trouble := range troubles {
		t.Run(m.format+"/"+strings.ReplaceAll(trouble.name, " ", "_"), func(t *testing.T) {
			switch {
			case trouble.content != "":
				scratch.File(t, trouble.file, trouble.content, 0o644)
			case trouble.file != "":
				if err := os.Symlink(os.DevNull, trouble.file); err != nil {
					t.Fatal(err)
				}
			}
			if trouble.file != "" {
				t.Cleanup(func() {
					if err := os.Remove(trouble.file); err != nil {
						t.Error(err)
					}
					onNode(t, "systemctl", "daemon-reload")
					onNode(t, "systemctl", "reset-failed")
				})
			}
			for _, dir := range []string{"release", "later", "release"} {
				m.call(t, trouble.within, append(slices.Clone(m.install), packaged(t, dir, m.format)))
				out, err := exec.Command(m.state[0], m.state[1:]...).CombinedOutput()
				if err != nil || string(out) != m.sound {
					t.Errorf("with the package of bin/%s installed: %v: %s, want %s", dir, err, out, m.sound)
				}
			}
			m.call(t, trouble.within, m.remove)
			if _, err := os.Lstat("/usr/bin/nri-rdma"); err == nil {
				t.Error("after the removal there is /usr/bin/nri-rdma")
			}
		})
	}
}

// call calls the package manager, whose scripts must end well: dpkg leaves a package half-configured where one fails,
// and rpm warns.
func (m *manager) call(t *testing.T, within, command []string) {
	t.Helper()
	command = append(slices.Clone(within), command...)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "scriptlet failed") {
		t.Errorf("%q: %v: %s", command, err, out)
	}
}

// testRPM installs the rpm as distributions do whose presets enable or disable a service, upgrades and downgrades it.
func testRPM(t *testing.T) {
	const preset = "/etc/systemd/system-preset/10-test.preset"
	m := managers[slices.IndexFunc(managers, func(m manager) bool { return m.format == "rpm" })]
	install := func(dir string) {
		m.call(t, nil, append(slices.Clone(m.install), packaged(t, dir, m.format)))
	}
	scratch.File(t, preset, "disable nri-rdma.service\n", 0o644)
	install("release")
	wantStopped(t, "a preset that disables", "disabled\n")
	install("later")
	wantStopped(t, "the same preset, upgraded", "disabled\n")
	m.call(t, nil, m.remove)

	scratch.File(t, preset, "enable nri-rdma.service\n", 0o644)
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(preset)) }) // the node's own disk goes with it
	pid := 0
	for _, dir := range []string{"release", "later", "release"} {
		install(dir)
		pid = awaitRegistered(t, pid)
	}
	m.call(t, nil, m.remove)
	wantStopped(t, "the rpm removed", "")
}
