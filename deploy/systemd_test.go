// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxExposure is what `systemd-analyze security` may say of the service, of 10. What is left: it runs as root, since the sockets
// are root's, and it sees the node's devices and network interfaces.
const maxExposure = 1.5

func TestServiceIsHardened(t *testing.T) {
	unit := installUnit(t)
	out := systemdAnalyze(t, "security", "--offline=true", "--no-pager", unit)
	overall := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if overall == nil {
		t.Fatalf("systemd-analyze security names no exposure:\n%s", out)
	}
	exposure, err := strconv.ParseFloat(overall[1], 64)
	if err != nil || exposure > maxExposure {
		t.Errorf("exposure is %s, want %v at most:\n%s", overall[1], maxExposure, out)
	}
}

// TestServiceKeepsWhatItNeeds names the hardening that would be too much: each of these makes the plugin see less than the node has.
func TestServiceKeepsWhatItNeeds(t *testing.T) {
	unit := installUnit(t)
	var settings []struct {
		Field string `json:"json_field"`
		Set   bool   `json:"set"`
	}
	out := systemdAnalyze(t, "security", "--offline=true", "--json=short", unit)
	if err := json.Unmarshal([]byte(out), &settings); err != nil {
		t.Fatalf("systemd-analyze security --json: %v:\n%s", err, out)
	}
	tooMuch := map[string]string{
		"PrivateDevices": "it hides /dev/infiniband",
		"PrivateNetwork": "it comes with a sysfs without the node's HCAs",
		"PrivateUsers":   "a device's group would read as nobody's, and is handed on to containers",
	}
	seen := 0
	for _, s := range settings {
		if why, ok := tooMuch[s.Field]; ok {
			seen++
			if s.Set {
				t.Errorf("%s is on: %s", s.Field, why)
			}
		}
	}
	if seen != len(tooMuch) {
		t.Errorf("systemd-analyze told of %d of the %d settings asked for:\n%s", seen, len(tooMuch), out)
	}
}

func TestServiceVerifies(t *testing.T) {
	if out := systemdAnalyze(t, "verify", "--man=false", installUnit(t)); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

func TestServiceFlagsExist(t *testing.T) {
	unit := read(t, "systemd/nri-rdma.service")
	start := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("no ExecStart")
	}
	if _, problem := newPrograms(t).check(start[1]); problem != "" {
		t.Error(problem)
	}
}

// installUnit lays the unit and its drop-ins out as in /etc/systemd/system, with a program where ExecStart says, since
// systemd-analyze wants one.
func installUnit(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	program := filepath.Join(folder, "nri-rdma")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(folder, "nri-rdma.service")
	text := strings.ReplaceAll(read(t, "systemd/nri-rdma.service"), "/usr/local/bin/nri-rdma", program)
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return unit
}

// systemdAnalyze runs systemd-analyze, and gives what it says on both outputs.
func systemdAnalyze(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("systemd-analyze", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("systemd-analyze %s: %v (Debian has it in the package systemd)\n%s", strings.Join(args, " "), err, &out)
	}
	return out.String()
}
