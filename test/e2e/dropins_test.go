// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestDropIns: each containerd reads its drop-ins as they are meant, beside a main file that has NRI off where it
// merges, and keeps what else that file says.
func TestDropIns(t *testing.T) {
	parts := nodeParts(t)
	const (
		v2 = "version = 2\nimports = ['%DIR%/*.toml']\n[plugins.'io.containerd.grpc.v1.cri']\n  sandbox_image = 'mine:1'\n"
		v3 = "version = 3\nimports = ['%DIR%/*.toml']\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = " +
			"'mine:1'\n"
		off = "[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
	)
	nri, validator := []string{"nri-v3.toml"}, []string{"nri-v3.toml", "nri-validator-v3.toml"}
	for _, test := range []struct {
		version, main string
		dropIns       []string
		validator     bool
	}{
		{version: "1.7.35", main: v2, dropIns: []string{"nri-v2.toml"}},
		{version: "2.2.9", main: v3 + off, dropIns: validator, validator: true},
		{version: "2.3.7", main: v3 + off, dropIns: nri},
		{version: "2.3.7", main: v2, dropIns: validator, validator: true},
		{version: "2.4.2", main: v3 + off, dropIns: nri},
		{version: "2.4.2", main: v3 + off, dropIns: validator, validator: true},
	} {
		folder := scratch.Folder(t)
		main := filepath.Join(folder, "config.toml")
		scratch.File(t, main, strings.ReplaceAll(test.main, "%DIR%", folder+"/conf.d"), 0o644)
		for _, d := range test.dropIns {
			scratch.File(t, filepath.Join(folder, "conf.d", d), deployFile(t, "containerd/"+d), 0o644)
		}
		out, err := exec.Command(filepath.Join(parts.Containerd(test.version), "containerd"), "--config", main,
			"config", "dump").Output()
		if err != nil {
			t.Errorf("containerd %s, %v: %v", test.version, test.dropIns, err)
			continue
		}
		wants := []string{`mine:1`, `io\.containerd\.nri\.v1\.nri['"]\]\n\s+disable = false`}
		if test.validator {
			wants = append(wants, `default_validator\]\n\s+enable = true`, `required_plugins = \[\]`)
		}
		for _, want := range wants {
			if !regexp.MustCompile(want).Match(out) {
				t.Errorf("containerd %s, %v: nothing matches %s in what it reads", test.version, test.dropIns, want)
			}
		}
	}
}
