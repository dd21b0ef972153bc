// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/deploy/systemd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// installCDI lays the units out as in /etc/systemd/system, with a program where ExecStart says.
func installCDI(t *testing.T) (units []string) {
	t.Helper()
	folder := scratch.Folder(t)
	program := filepath.Join(folder, "rdma-spec")
	scratch.File(t, program, "#!/bin/sh\n", 0o755)
	for _, name := range []string{"rdma-spec-cdi.service", "rdma-spec-cdi.timer"} {
		text, err := systemd.CDI.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(folder, name)
		scratch.File(t, unit, strings.ReplaceAll(string(text), "/usr/local/bin/rdma-spec", program), 0o644)
		units = append(units, unit)
	}
	return units
}

func TestCDIUnitsVerify(t *testing.T) {
	if out := systemdAnalyze(t, append([]string{"verify", "--man=false"},
		installCDI(t)...)...); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

func TestCDIServiceIsHardened(t *testing.T) {
	wantExposure(t, maxExposure, installCDI(t)[0])
}
