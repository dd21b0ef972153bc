// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package golden compares the results of a test with a file in testdata. `go test -update` writes the results to the
// file. Read the diff before you commit it.
package golden

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Compare fails the test if the golden file does not contain the text got. With -update, it writes got to the file
// instead.
func Compare(t testing.TB, file, got string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if *update && string(want) != got { // the file is written only if it changes, because tests of other packages may be reading it
		want = []byte(got)
		err = os.WriteFile(file, want, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s: if that is meant, `make update` writes it anew (-want +got):\n%s", file, diff)
	}
}

// Begin writes a skeleton to a file that people then edit, if the file does not exist and -update is set.
func Begin(t testing.TB, file, skeleton string) {
	t.Helper()
	if _, err := os.Stat(file); !*update || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := os.WriteFile(file, []byte(skeleton), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cases collects the results of several cases for one golden file. A map would hide that two cases have the same name.
type Cases struct{ says map[string]string }

// Add adds the result of a case. It fails the test if another case has the same name.
func (c *Cases) Add(t testing.TB, name, says string) {
	t.Helper()
	if _, twice := c.says[name]; twice {
		t.Errorf("two cases are called %q", name)
	} else if c.says == nil {
		c.says = map[string]string{}
	}
	c.says[name] = says
}

// Compare compares all cases, sorted by name, with a golden file.
func (c *Cases) Compare(t testing.TB, file string) {
	t.Helper()
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.says)) {
		fmt.Fprintf(&all, "# %s\n%s\n", name, strings.TrimSuffix(c.says[name], "\n"))
	}
	Compare(t, file, all.String())
}

// JSON returns a value in the format of golden files: indented JSON, in which < and > are not escaped.
func JSON(t testing.TB, value any) string {
	t.Helper()
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
