// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package golden compares what a test gives with what is written down. `go test -update` writes it down anew; read the
// difference before you commit it.
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

// Compare fails the test where a text is not that of the golden file.
func Compare(t testing.TB, file, got string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if *update && string(want) != got { // tests of other packages may read it meanwhile
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

// Begin writes a file that people go on with, where -update is given and there is none yet.
func Begin(t testing.TB, file, skeleton string) {
	t.Helper()
	if _, err := os.Stat(file); !*update || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := os.WriteFile(file, []byte(skeleton), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cases are what is said in several cases. A map would lose one of two that have one name.
type Cases struct{ says map[string]string }

// Add adds what is said in a case, and fails the test where another has its name.
func (c *Cases) Add(t testing.TB, name, says string) {
	t.Helper()
	if _, twice := c.says[name]; twice {
		t.Errorf("two cases are called %q", name)
	} else if c.says == nil {
		c.says = map[string]string{}
	}
	c.says[name] = says
}

// Compare is Compare of the cases, by their names.
func (c *Cases) Compare(t testing.TB, file string) {
	t.Helper()
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.says)) {
		fmt.Fprintf(&all, "# %s\n%s\n", name, strings.TrimSuffix(c.says[name], "\n"))
	}
	Compare(t, file, all.String())
}

// JSON returns a value as golden files have it: indented, with < and > as they are.
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
