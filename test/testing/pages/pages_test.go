// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

const page = "# A page\n\n```sh TestOne\necho a\nfalse\necho NAME\n```\n\n1. Indented:\n\n   ```sh (a card)\n   mlxconfig\n   ```\n\n```toml\na = 1\n```\n"

func TestOf(t *testing.T) {
	want := []Block{
		{"a.md", 3, "sh", "TestOne", "echo a\nfalse\necho NAME\n"},
		{"a.md", 11, "sh", "(a card)", "mlxconfig\n"},
		{"a.md", 15, "toml", "", "a = 1\n"},
	}
	if diff := cmp.Diff(want, Blocks("a.md", page)); diff != "" {
		t.Error(diff)
	}
}

// A block is run to its end, and each failed command is named.
func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		content, output string
		failed          []Failure
	}{
		"well":             {"echo a\necho NAME\n", "a\nb\n", nil},
		"one fails":        {"echo a\nfalse\necho NAME\n", "a\nb\n", []Failure{{"false", 1}}},
		"the last fails":   {"(exit 3)\n", "", []Failure{{"( exit 3 )", 3}}},
		"not there":        {"no-such-program --flag 2>/dev/null\n", "", []Failure{{"no-such-program --flag 2> /dev/null", 127}}},
		"a part of a pipe": {"echo c | cat\n", "c\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			output, failed, err := Shell{Dir: scratch.Dir(t), Here: strings.NewReplacer("NAME", "b")}.Run(t.Context(),
				Block{Content: test.content})
			if diff := cmp.Diff(test.failed, failed); diff != "" || output != test.output || err != nil {
				t.Errorf("%q, %v (-want +got):\n%s", output, err, diff)
			}
		})
	}
}
