// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The validator's service differs from the plugin's in what it is called and how it is started, and is hardened alike.
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
	folder := scratch.Folder(t)
	program, unit := filepath.Join(folder, "nri-rdma"), filepath.Join(folder, "nri-rdma-validator.service")
	scratch.File(t, program, "#!/bin/sh\n", 0o755)
	scratch.File(t, unit, strings.ReplaceAll(repository.Read(t, "deploy/systemd/nri-rdma-validator.service"),
		"/usr/local/bin/nri-rdma", program), 0o644)
	if out := systemdAnalyze(t, "verify", "--man=false", unit); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}
