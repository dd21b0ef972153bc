// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// maxExposure is what `systemd-analyze security` may say of the service, of 10. What is left: it runs as root, since
// the sockets are root's, and it sees the node's devices and network interfaces.
const maxExposure = 2.0

func TestMain(m *testing.M) { repository.Main(m) }

func TestServiceIsHardened(t *testing.T) {
	for _, dropIns := range [][]string{nil, {"nri-rdma-http.conf"}, {"nri-rdma-http.conf", "nri-rdma-repair.conf"}} {
		wantExposure(t, maxExposure, installUnit(t, dropIns...))
	}
}

// maxDoctorExposure is more than maxExposure: the doctor reads what only root with some of its capabilities can.
const maxDoctorExposure = 2.7

func TestDoctorServiceIsHardened(t *testing.T) {
	folder := scratch.Folder(t)
	program, units := filepath.Join(folder, "rdma-spec"), filepath.Join(folder, "units")
	scratch.File(t, program, "#!/bin/sh\n", 0o755)
	for _, name := range []string{"rdma-spec-doctor.service", "rdma-spec-doctor.timer"} {
		scratch.File(t, filepath.Join(units, name), strings.ReplaceAll(repository.Read(t, "deploy/systemd/"+name),
			"/usr/local/bin/rdma-spec", program), 0o644)
	}
	service := filepath.Join(units, "rdma-spec-doctor.service")
	wantExposure(t, maxDoctorExposure, service)
	if out := systemdAnalyze(t, "verify", "--man=false", service,
		filepath.Join(units, "rdma-spec-doctor.timer")); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

// wantExposure checks what `systemd-analyze security` says of a unit.
func wantExposure(t *testing.T, most float64, unit string) {
	t.Helper()
	out := systemdAnalyze(t, "security", "--offline=true", "--no-pager", unit)
	overall := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if overall == nil {
		t.Fatalf("systemd-analyze security names no exposure:\n%s", out)
	}
	exposure, err := strconv.ParseFloat(overall[1], 64)
	if err != nil || exposure > most {
		t.Errorf("exposure of %s is %s, want %v at most:\n%s", unit, overall[1], most, out)
	}
}

// TestServiceKeepsWhatItNeeds names the hardening that would be too much: each of these makes the plugin see less than
// the node has.
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
	dropIns, err := filepath.Glob("*.conf")
	if err != nil || len(dropIns) == 0 {
		t.Fatalf("drop-ins %v, %v", dropIns, err)
	}
	if out := systemdAnalyze(t, "verify", "--man=false", installUnit(t, dropIns...)); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

func TestServiceFlagsExist(t *testing.T) {
	p := repository.Build(t)
	files, err := filepath.Glob("*")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		start := regexp.MustCompile(`(?m)^ExecStart=(.+)$`).FindStringSubmatch(repository.Read(t, "deploy/systemd/"+file))
		if start == nil {
			continue
		}
		if ours, problem := p.Check(start[1]); !ours || problem != "" {
			t.Errorf("%s: %s: %s", file, start[0], problem)
		}
	}
}

// TestWrongCallIsNoPanic: the exit status of a wrong call is the one after which systemd starts nothing again, and not
// the one with which Go ends a program that panics.
func TestWrongCallIsNoPanic(t *testing.T) {
	var ended *exec.ExitError
	err := exec.Command(filepath.Join(repository.Build(t).Folder, "nri-rdma"), "--wrong").Run()
	if !errors.As(err, &ended) {
		t.Fatalf("nri-rdma --wrong: %v, want an exit status", err)
	}
	const panics = 2
	if ended.ExitCode() == panics {
		t.Errorf("nri-rdma --wrong exits with %d, as a panic does", panics)
	}
	for _, unit := range []string{"deploy/systemd/nri-rdma.service", "deploy/systemd/nri-rdma-validator.service"} {
		if want := fmt.Sprintf("\nRestartPreventExitStatus=%d\n",
			ended.ExitCode()); !strings.Contains(repository.Read(t, unit), want) {
			t.Errorf("%s does not say %q", unit, want)
		}
	}
}

// installUnit lays the unit and drop-ins out as in /etc/systemd/system, with a program where ExecStart says, since
// systemd-analyze wants one.
func installUnit(t *testing.T, dropIns ...string) string {
	t.Helper()
	folder := scratch.Folder(t)
	program := filepath.Join(folder, "nri-rdma")
	scratch.File(t, program, "#!/bin/sh\n", 0o755)
	unit := filepath.Join(folder, "nri-rdma.service")
	install := func(from, to string) {
		scratch.File(t, to, strings.ReplaceAll(repository.Read(t, from), "/usr/local/bin/nri-rdma", program), 0o644)
	}
	install("deploy/systemd/nri-rdma.service", unit)
	for _, d := range dropIns {
		install("deploy/systemd/"+d, filepath.Join(unit+".d", filepath.Base(d)))
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
