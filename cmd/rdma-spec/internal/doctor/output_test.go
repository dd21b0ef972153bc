// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
)

// node-problem-detector keeps 80 bytes of one line.
func TestWriteNPD_lineLength(t *testing.T) {
	for _, object := range []string{strings.Repeat("x", 200), strings.Repeat("é", 100), "a\nb\x1b[2J", "ok"} {
		var out strings.Builder
		err := WriteNPD(&out, []Finding{{Check: "c", Status: Wrong, Object: object,
			Text: "It is wrong."}}, nil)
		line, ended := strings.CutSuffix(out.String(), "\n")
		if !errors.Is(err, cli.ErrProblemFound) || !ended || len(line) > 80 || strings.ContainsAny(line, "\n\x1b") ||
			strings.ToValidUTF8(line, "") != line {
			t.Errorf("%q: %q, %v", object, line, err)
		}
	}
}

// A check that does not apply is not a sign of health.
func TestWriteNPD_nothingApplies(t *testing.T) {
	none := Finding{Check: "port-active", Status: NotApplied, Text: "The node has no HCA."}
	for name, test := range map[string]struct {
		findings []Finding
		want     string
	}{
		"nothing applies":    {[]Finding{none, none}, "nothing to check: The node has no HCA.\n"},
		"something was seen": {[]Finding{none, {Check: "acs", Status: OK}}, "no fault found\n"},
	} {
		var out strings.Builder
		if err := WriteNPD(&out, test.findings, nil); err != nil || out.String() != test.want {
			t.Errorf("%s: %q, %v, want %q", name, out.String(), err, test.want)
		}
	}
}

// A terminal shows signs, and a pipe words.
func TestDoctorOnATerminal(t *testing.T) {
	leader, terminal, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _, _ = leader.Close(), terminal.Close() })
	if !cli.IsTerminal(&cli.ResultWriter{Writer: terminal}) ||
		cli.IsTerminal(&cli.ResultWriter{Writer: &strings.Builder{}}) {
		t.Error("a terminal is not told from a pipe")
	}
	var out strings.Builder
	all := []Finding{
		{Check: "a", Status: OK, Text: "A."}, {Check: "b", Status: NotApplied, Text: "B."},
		{Check: "c", Status: Unknown, Text: "C."},
		{Check: "d", Status: Skipped, Text: "D."}, {Check: "e", Status: Unknown, Text: "C."},
		Fault("", "F.", "x\x1b").Disruptive("The pod loses it.", "rdma-spec status"),
	}
	if err := ListFindings(&out, all, true, true); err != nil {
		t.Fatal(err)
	}
	want := "· b: B.\n✓ a: A.\n- d: D.\n? c, e: C.\n✗ : F.\n    impact: \n    fix (disruptive): x\uFFFD\n" +
		"    warning: The pod loses it.\n    to see what is affected: rdma-spec status\n    for details: rdma-spec doctor --explain , or \n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
