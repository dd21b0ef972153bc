// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// Whatever others say, a row is a line with its cells, a note is a line, and nothing steers the terminal.
func TestPrintable_inAllOutput(t *testing.T) {
	const text = "a\tb\n\x1b[2Jc"
	var out strings.Builder
	if err := WriteTable(&out, []string{"POD", "WHY"}, [][]string{{"x", text}, {"", "d"}}); err != nil {
		t.Fatal(err)
	}
	WriteNotes(&out, []string{text})
	fails := &cobra.Command{Use: "rdma-spec", RunE: func(*cobra.Command, []string) error { return errors.New(text) }}
	if status := Run(fails, func() error { return nil }, nil, nil, &out, &out); status != 3 {
		t.Errorf("exit status %d", status)
	}
	want := "POD  WHY\nx    a\ufffdb \ufffd[2Jc\n-    d\nrdma-spec: a\ufffdb \ufffd[2Jc\nrdma-spec: a\ufffdb\n\ufffd[2Jc\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWriteStructured(t *testing.T) {
	v := map[string]any{"state": "<unknown> & 'more'", "limit": uint64(math.MaxUint64)}
	for format, want := range map[string]string{
		"json": "{\n  \"limit\": 18446744073709551615,\n  \"state\": \"<unknown> & 'more'\"\n}\n",
		"yaml": "limit: 18446744073709551615\nstate: <unknown> & 'more'\n",
	} {
		var out bytes.Buffer
		if err := WriteStructured(&out, format, v); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
	if err := WriteStructured(&bytes.Buffer{}, "xml", v); err == nil ||
		err.Error() != `output format "xml" is neither json nor yaml` {
		t.Errorf("xml: error %v", err)
	}
	if err := WriteStructured(&bytes.Buffer{}, "yaml", func() {}); err == nil {
		t.Error("a function became YAML")
	}
}

func TestWriteTable(t *testing.T) {
	rows := [][]string{{"mlx5_0", "", "x"}, {"a", "long cell", ""}}
	var out bytes.Buffer
	if err := WriteTable(&out, []string{"NAME", "PORT STATE", "Z"}, rows); err != nil {
		t.Fatal(err)
	}
	want := "NAME    PORT STATE  Z\nmlx5_0  -           x\na       long cell   -\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rows[0][1] != "" {
		t.Error("the caller's rows were changed")
	}
}

// Rows that come later are below those before, and what is wider widens the column.
func TestTableInParts(t *testing.T) {
	var out bytes.Buffer
	table := NewTable(&out, []string{"NODE", "HCA", "STATE"})
	for _, rows := range [][][]string{nil, {{"node-1", "mlx5_0", "DOWN"}}, {{"a", "", "ACTIVE"}, {"a", "bnxt_re_bond0", ""}}} {
		if err := table.Write(rows); err != nil {
			t.Fatal(err)
		}
	}
	want := "NODE  HCA  STATE\nnode-1  mlx5_0  DOWN\na       -              ACTIVE\na       bnxt_re_bond0  -\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestIsUsageError(t *testing.T) {
	for err, want := range map[error]bool{
		Usage(errors.New("memlock is not a size")):                true,
		fmt.Errorf("generate: %w", Usage(errors.New("x"))):        true,
		errors.New(`unknown command "x" for "rdma-spec"`):         true,
		errors.New("accepts at most 1 arg(s), received 2"):        true,
		errors.New("requires at least 1 arg(s), only received 0"): true,
		errors.New("cannot write x: no space left on device"):     false,
		fmt.Errorf("--from x: %w", errors.New("unknown command")): false,
		ErrProblemFound: false,
	} {
		if got := IsUsageError(err); got != want {
			t.Errorf("isUsageError(%v) = %v, want %v", err, got, want)
		}
	}
}
