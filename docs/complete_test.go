// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestPackagesHaveARow checks that "Where things are" in CONTRIBUTING.md has each package of the plugin and of spec.
// Packages that help tests end in "test".
func TestPackagesHaveARow(t *testing.T) {
	page, count := repository.Read(t, "CONTRIBUTING.md"), 0
	top := repository.Path(t, ".")
	for _, folder := range []string{"cmd/internal", "plugin", "spec"} {
		err := filepath.WalkDir(filepath.Join(top, folder), func(place string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() || strings.HasSuffix(place, "test") {
				return err
			}
			if files, err := filepath.Glob(filepath.Join(place, "*.go")); err != nil || len(files) == 0 {
				return err
			}
			name, err := filepath.Rel(top, place)
			if count++; err == nil && !regexp.MustCompile("(?m)^\\|.*`"+regexp.QuoteMeta(name)+"`.* \\| ").MatchString(page) {
				t.Errorf("CONTRIBUTING.md does not say where %s is", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if count < 15 {
		t.Errorf("%d packages found, want more", count)
	}
}

// TestDependenciesHaveARow checks that CONTRIBUTING.md says of each direct dependency why it is there. A module that
// belongs to another one, whose row says "and its", has none of its own.
func TestDependenciesHaveARow(t *testing.T) {
	page, count := repository.Read(t, "CONTRIBUTING.md"), 0
	for _, file := range []string{"go.mod", "deploy/release/go.mod"} {
		for _, required := range regexp.MustCompile(`(?m)^(?:\t|require )([^\s(]+) v\S+$`).FindAllStringSubmatch(
			repository.Read(t, file), -1) {
			parent, child := path.Split(required[1])
			if count++; required[1] == "github.com/rdma-spec/rdma-spec" {
				continue
			}
			row := fmt.Sprintf(`(?m)^\| (.*, )?(%s|%s[^|]* and its %s)[, |]`, regexp.QuoteMeta(required[1]),
				regexp.QuoteMeta(strings.TrimSuffix(parent, "/")), regexp.QuoteMeta(child))
			if !regexp.MustCompile(row).MatchString(page) {
				t.Errorf("%s requires %s, and CONTRIBUTING.md does not say why", file, required[1])
			}
		}
	}
	if count < 40 {
		t.Errorf("%d dependencies found, want more", count)
	}
}

// TestAlertsHaveARow checks that docs/metrics.md has each alert about the plugin by its name, in the order of the file,
// and leads where the alert does: whoever is woken up searches for the name.
func TestAlertsHaveARow(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations struct {
					Runbook string `json:"runbook_url"`
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(repository.Read(t, "deploy/helm/nri-rdma/files/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\| .*\\]\\(([^)]*)\\) \\|$").FindAllStringSubmatch(
		repository.Read(t, "docs/metrics.md"), -1)
	rules := file.Groups[0].Rules
	if len(rules) < 10 || len(rows) != len(rules) {
		t.Fatalf("docs/metrics.md has %d alerts, and the file %d", len(rows), len(rules))
	}
	for i, rule := range rules {
		leads, _ := addresses("alerts.yaml", strings.TrimSuffix(rule.Annotations.Runbook, "/{{ $labels.check }}"))
		if got := links("docs/metrics.md", "]("+rows[i][2]+")"); rows[i][1] != rule.Alert || len(leads) != 1 ||
			got[0].file != leads[0].file || got[0].anchor != leads[0].anchor {
			t.Errorf("%s leads to %v, and row %d of docs/metrics.md, %s, to %v", rule.Alert, leads, i, rows[i][1], got)
		}
	}
}

// TestUninstallHasWhatPagesApply checks that the page about uninstalling names each object that the pages about pods
// without the plugin apply. What waits for the plugin waits for ever once that is gone, and a taint stays.
func TestUninstallHasWhatPagesApply(t *testing.T) {
	_, uninstall, _ := strings.Cut(repository.Read(t, "docs/upgrade-and-uninstall.md"), "\n## Uninstall\n")
	count := 0
	for _, file := range []string{"docs/fail-closed.md", "docs/gate.md", "docs/security.md"} {
		for _, applied := range regexp.MustCompile(`(?m)^ *kubectl apply .*-[fk] (\S+)$`).FindAllStringSubmatch(
			repository.Read(t, file), -1) {
			if count++; !strings.Contains(uninstall, applied[1]) {
				t.Errorf("%s applies %s, and nothing says how to remove it", file, applied[1])
			}
		}
	}
	if count < 6 {
		t.Errorf("%d objects found, want more", count)
	}
}
