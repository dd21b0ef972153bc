// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// Whatever containers, runtimes and files say, a row is a line with its cells, a note is a line, and nothing steers the
// terminal.
func TestTextOfOthers(t *testing.T) {
	const text = "a\tb\n\x1b[2Jc"
	var out strings.Builder
	if err := WriteTable(&out, []string{"POD", "WHY"}, [][]string{{"x", text}, {"", "d"}}); err != nil {
		t.Fatal(err)
	}
	WriteNotes(&out, []string{text})
	fails := &cobra.Command{RunE: func(*cobra.Command, []string) error { return errors.New(text) }}
	if status := Run(fails, func() error { return nil }, nil, nil, &out, &out); status != 3 {
		t.Errorf("exit status %d", status)
	}
	want := "POD  WHY\nx    a\ufffdb \ufffd[2Jc\n-    d\nrdma-spec: a\ufffdb \ufffd[2Jc\nrdma-spec: a\ufffdb\n\ufffd[2Jc\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
