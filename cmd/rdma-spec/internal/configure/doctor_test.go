// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		got := configure(root, "--all --program ROOT/nri-rdma "+test.dryRun)
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
