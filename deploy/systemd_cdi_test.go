// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/deploy/systemd"
)

// installCDI lays the units out as in /etc/systemd/system, with a program where ExecStart says.
func installCDI(t *testing.T) (units []string) {
	t.Helper()
	folder := t.TempDir()
	program := filepath.Join(folder, "rdma-spec")
	write(t, program, "#!/bin/sh\n", 0o755)
	for _, name := range []string{"rdma-spec-cdi.service", "rdma-spec-cdi.path", "rdma-spec-cdi.timer"} {
		text, err := systemd.CDI.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(folder, name)
		write(t, unit, strings.ReplaceAll(string(text), "/usr/local/bin/rdma-spec", program), 0o644)
		units = append(units, unit)
	}
	return units
}

func TestCDIUnitsVerify(t *testing.T) {
	if out := systemdAnalyze(t, append([]string{"verify", "--man=false"}, installCDI(t)...)...); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

func TestCDIServiceIsHardened(t *testing.T) {
	out := systemdAnalyze(t, "security", "--offline=true", "--no-pager", installCDI(t)[0])
	overall := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if overall == nil {
		t.Fatalf("systemd-analyze security names no exposure:\n%s", out)
	}
	if exposure, err := strconv.ParseFloat(overall[1], 64); err != nil || exposure > maxExposure {
		t.Errorf("exposure is %s, want %v at most:\n%s", overall[1], maxExposure, out)
	}
}
