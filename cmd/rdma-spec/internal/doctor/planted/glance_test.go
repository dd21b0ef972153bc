// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// shown is what a terminal has of findings.
func shown(t *testing.T, findings []doctor.Finding, verbose bool) string {
	t.Helper()
	var out strings.Builder
	if err := doctor.ListFindings(&out, findings, true, verbose); err != nil {
		t.Fatal(err)
	}
	if err := doctor.CountFindings(&out, findings); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A terminal of 40 lines with 80 columns has all faults of a node with 16 dark rails, and ends with the counts and how
// to check again.
func TestFaultsAtAGlance(t *testing.T) {
	f := known{node: nodeOf(rails(ocp, 0, 16, polling), rails(connectX, 16, 2, eth(hdr)))}.files().With(resources)
	all := findings(t, f)
	screen := shown(t, all, false)
	rows := 0
	for line := range strings.Lines(screen) {
		rows += (utf8.RuneCountInString(line) + 79) / 80
	}
	last := strings.Split(strings.TrimSpace(screen), "\n")
	counts := last[len(last)-2]
	again := "rdma-spec: to check again after a fix, repeat the command with --only port-active"
	if rows > 40 || !strings.HasPrefix(counts, "rdma-spec: 16 wrong: port-active (16); ") || last[len(last)-1] != again {
		t.Errorf("%d rows:\n%s", rows, screen)
	}
	for i := range 16 {
		if !strings.Contains(screen, fmt.Sprintf("HCA mlx5_%d port 1", i)) {
			t.Errorf("mlx5_%d is missing:\n%s", i, screen)
		}
	}
	if strings.Index(screen, "mlx5_2 ") > strings.Index(screen, "mlx5_10 ") || strings.Contains(screen, "✓") {
		t.Error(screen)
	}
	t.Log("\n" + screen)
	if full := shown(t, all, true); strings.Count(full, "fix (") != 16 || !strings.Contains(full, "✓ hca-answers: ") {
		t.Error(full)
	}
}

// What a check says of many objects in the same words is one line, and the closing line counts checks.
func TestListFindings_mergesSameText(t *testing.T) {
	var cards []hcatest.PCI
	for i := range 24 {
		cards = append(cards, hcatest.PCI{Address: fmt.Sprintf("0000:b%x:00.%d", i/8, i%8), Driver: "mlx5_core"})
	}
	n := nodeOf(rails(ocp, 0, 1, ib(ndr)))
	n.PCI = cards
	screen := shown(t, findings(t, known{node: n}.files()), false)
	want := "✓ hca-present: PCI device 0000:b0:00.0, PCI device 0000:b0:00.1, PCI device 0000:b0:00.2, PCI device " +
		"0000:b0:00.3, and 20 more: The device does not support RDMA. Exclude it from the device plugin's selector.\n"
	if !strings.Contains(screen, want) || strings.Count(screen, "The device does not support RDMA") != 1 {
		t.Error(screen)
	}
	var closing strings.Builder
	if err := doctor.CountFindings(&closing, []doctor.Finding{{Check: "a", Status: doctor.OK}, {Check: "b", Status: doctor.OK},
		{Check: "b", Status: doctor.Wrong}, {Check: "b", Status: doctor.Wrong}, {Check: "c", Status: doctor.Unknown},
		{Check: "c", Status: doctor.OK}}); err != nil {
		t.Fatal(err)
	}
	want = "rdma-spec: 2 wrong: b (2); 3 checks: 1 wrong, 1 unknown, 1 ok\n" +
		"rdma-spec: to check again after a fix, repeat the command with --only b\n"
	if diff := cmp.Diff(want, closing.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
