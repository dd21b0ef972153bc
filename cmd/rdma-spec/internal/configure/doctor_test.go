// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A configuration of everything ends with what else is wrong, and succeeds all the same.
func TestConfigureAllEndsWithADoctor(t *testing.T) {
	root, _ := configureNode(t)
	scratch.File(t, filepath.Join(root, "opt/nri/plugins/10-ulimit-adjuster"), "", 0o600)
	for _, test := range []struct {
		name, dryRun string
		want         []string // the checks that find something, and the last line
	}{
		{"dry run", "--dry-run", nil},
		{"first", "--dry-run=false", []string{"wrong nri-rivals",
			"doctor: 1 fault; run rdma-spec doctor after the steps above"}},
		{"again, and no step was taken", "--dry-run=false", []string{"wrong nri-rivals",
			"wrong plugin-runs", "doctor: 2 faults"}},
	} {
		got := call("configure", "--all", test.dryRun, "--program", filepath.Join(root, "nri-rdma"), "--root", root)
		var found []string
		for line := range strings.Lines(got.Stdout) {
			check, _, isFinding := strings.Cut(line, ": ")
			if isFinding && strings.HasPrefix(check, "wrong ") {
				found = append(found, check)
			} else if strings.HasPrefix(line, "doctor: ") {
				found = append(found, strings.TrimSuffix(line, "\n"))
			}
		}
		slices.Sort(found)
		slices.Sort(test.want)
		if diff := cmp.Diff(test.want, found); diff != "" || got.Status != 0 {
			t.Errorf("%s: exit status %d (-want +got):\n%s\n%s%s", test.name, got.Status, diff, got.Stdout, got.Stderr)
		}
	}
}

// The doctor is told which file another tool has overwritten since configure wrote it.
func TestDoctorOfConfiguredFiles(t *testing.T) {
	root, _ := cdiNode(t, "etc/systemd/system/containerd.service")
	if got := call("configure", "limits", "--root", root); got.Status != 0 {
		t.Fatalf("%+v", got)
	}
	answer := func() []change.Overwriting {
		t.Helper()
		got, err := change.ReadConfigured(root)
		if err != nil {
			t.Fatal(err)
		}
		return got.Overwritten
	}
	if got := answer(); len(got) != 0 {
		t.Errorf("untouched: %v", got)
	}
	const dropIn = "/etc/systemd/system/containerd.service.d/90-rdma-spec-memlock.conf"
	scratch.File(t, filepath.Join(root, dropIn), "[Service]\nLimitMEMLOCK=64K\n", 0o600)
	want := []change.Overwriting{{Path: dropIn, Feature: "limits"}}
	if diff := cmp.Diff(want, answer(), cmpopts.IgnoreFields(change.Overwriting{}, "Since")); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}
