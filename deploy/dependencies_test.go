// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDependenciesAreExplained: CONTRIBUTING.md says of each module that our packages import why it is there, and of no other.
func TestDependenciesAreExplained(t *testing.T) {
	_, table, found := strings.Cut(read(t, filepath.Join(root, "CONTRIBUTING.md")), "## Dependencies")
	if !found {
		t.Fatal("CONTRIBUTING.md has no heading Dependencies")
	}
	var explained []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*\.[^|]*) \| .* \|$`).FindAllStringSubmatch(table, -1) {
		explained = append(explained, strings.Split(row[1], ", ")...)
	}
	slices.Sort(explained)
	if diff := cmp.Diff(importedModules(t), explained); diff != "" {
		t.Errorf("modules, -imported +explained:\n%s", diff)
	}
}

// importedModules gives the modules that packages of ours import, tests included, in order.
func importedModules(t *testing.T) []string {
	t.Helper()
	list := goCommand(t, "list", "-tags", "node", "-f",
		`{{range .Imports}}{{println .}}{{end}}{{range .TestImports}}{{println .}}{{end}}{{range .XTestImports}}{{println .}}{{end}}`, "./...")
	var file struct{ Require []struct{ Path string } }
	if err := json.Unmarshal([]byte(goCommand(t, "mod", "edit", "-json")), &file); err != nil {
		t.Fatal(err)
	}
	var imported []string
	for _, pkg := range strings.Fields(list) {
		module := ""
		for _, r := range file.Require {
			if (pkg == r.Path || strings.HasPrefix(pkg, r.Path+"/")) && len(r.Path) > len(module) {
				module = r.Path
			}
		}
		if module != "" && !slices.Contains(imported, module) {
			imported = append(imported, module)
		}
	}
	slices.Sort(imported)
	return imported
}

func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}
