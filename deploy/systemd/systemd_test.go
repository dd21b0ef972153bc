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
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestUnits checks that systemd has nothing to say of each unit and its drop-ins, and that `systemd-analyze security`
// says a number at most of the first, of 10. What is left of 2: it runs as root, since the sockets are root's, and it
// sees the node's devices and network interfaces. The doctor reads what only root with some of its capabilities can.
func TestUnits(t *testing.T) {
	for _, test := range []struct {
		most           float64
		program, files string
	}{
		{2.0, "nri-rdma", "nri-rdma.service"},
		{2.0, "nri-rdma", "nri-rdma.service nri-rdma-http.conf"},
		{2.0, "nri-rdma", "nri-rdma-validator.service"},
		{2.0, "rdma-spec", "rdma-spec-repair.service"},
		{2.0, "rdma-spec", "rdma-spec-cdi.service rdma-spec-cdi.timer"},
		{2.7, "rdma-spec", "rdma-spec-doctor.service rdma-spec-doctor.timer"},
	} {
		t.Run(test.files, func(t *testing.T) {
			units := layOut(t, test.program, strings.Fields(test.files)...)
			if out := systemdAnalyze(t, append([]string{"verify", "--man=false"}, units...)...); strings.TrimSpace(out) != "" {
				t.Errorf("systemd-analyze verify:\n%s", out)
			}
			wantExposure(t, test.most, units[0])
		})
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
	unit := layOut(t, "nri-rdma", "nri-rdma.service")[0]
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
	err := exec.Command(filepath.Join(repository.Build(t).Dir, "nri-rdma"), "--wrong").Run()
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

// layOut lays a service out as in /etc/systemd/system, with its drop-ins and other units, and a program where ExecStart
// says, since systemd-analyze wants one. It returns the units.
func layOut(t *testing.T, name string, files ...string) (units []string) {
	t.Helper()
	dir := scratch.Dir(t)
	program := filepath.Join(dir, name)
	scratch.File(t, program, "#!/bin/sh\n", 0o755)
	for _, file := range files {
		to := filepath.Join(dir, file)
		if filepath.Ext(file) == ".conf" {
			to = filepath.Join(dir, files[0]+".d", file)
		} else {
			units = append(units, to)
		}
		text := strings.ReplaceAll(repository.Read(t, "deploy/systemd/"+file), "/usr/local/bin/"+name, program)
		scratch.File(t, to, text, 0o644)
	}
	return units
}

// TestValidatorServiceIsAsThePlugins: the validator's service differs from the plugin's in what it is called and how it
// is started.
func TestValidatorServiceIsAsThePlugins(t *testing.T) {
	settings := func(file string) []string {
		var lines []string
		for line := range strings.Lines(repository.Read(t, file)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") &&
				!strings.HasPrefix(line, "Description=") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	want := settings("deploy/systemd/nri-rdma.service")
	start := slices.Index(want, "ExecStart=/usr/local/bin/nri-rdma")
	if start < 0 {
		t.Fatal("the plugin's service is started in another way")
	}
	want[start] += " --validate"
	// A validator writes nothing.
	want = slices.DeleteFunc(want, func(line string) bool { return strings.HasPrefix(line, "RuntimeDirectory") })
	if diff := cmp.Diff(want, settings("deploy/systemd/nri-rdma-validator.service")); diff != "" {
		t.Errorf("-as the plugin's +as it is:\n%s", diff)
	}
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
