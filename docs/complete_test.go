// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestPackagesHaveARow checks that "Where things are" in CONTRIBUTING.md has each package of the plugin and of spec.
// Packages that help tests end in "test".
func TestPackagesHaveARow(t *testing.T) {
	page, count := repository.Read(t, "CONTRIBUTING.md"), 0
	top := repository.Path(t, ".")
	for _, dir := range []string{"cmd/internal", "plugin", "spec"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(place string, entry fs.DirEntry, err error) error {
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

// TestDependenciesHaveARow checks that a record says of each direct dependency why it is there.
func TestDependenciesHaveARow(t *testing.T) {
	const file = "docs/design/dependencies.md"
	page, count := repository.Read(t, file), 0
	for _, mod := range []string{"go.mod", "deploy/release/go.mod"} {
		for _, required := range regexp.MustCompile(`(?m)^(?:\t|require )([^\s(]+) v\S+$`).FindAllStringSubmatch(
			repository.Read(t, mod), -1) {
			if count++; required[1] == "github.com/rdma-spec/rdma-spec" {
				continue
			}
			row := regexp.MustCompile(`(?m)^\| (.*, )?` + regexp.QuoteMeta(required[1]) + `[, |]`)
			if !row.MatchString(page) {
				t.Errorf("%s requires %s, and %s does not say why", mod, required[1], file)
			}
		}
	}
	if count < 40 {
		t.Errorf("%d dependencies found, want more", count)
	}
}

// TestAlertsHaveASection checks that docs/alerts.md has a section of each alert with its name, in the order of the
// files, and that the alert leads there, or to the page about its check: whoever is woken up searches for the name.
func TestAlertsHaveASection(t *testing.T) {
	sections := regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(repository.Read(t, "docs/alerts.md"), -1)
	var want []string
	for _, name := range []string{"helm/nri-rdma/files/alerts.yaml", "helm/nri-rdma/files/alerts-use.yaml", "prometheus/node_exporter.yaml"} {
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
		if err := yaml.Unmarshal([]byte(repository.Read(t, "deploy/"+name)), &file); err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" { // it records
					continue
				}
				want = append(want, rule.Alert)
				leads := rule.Annotations.Runbook
				if leads != docs.Site+"alerts#"+strings.ToLower(rule.Alert) && leads != docs.Site+"faults/{{ $labels.check }}" {
					t.Errorf("%s leads to %s", rule.Alert, leads)
				}
			}
		}
	}
	var got []string
	for _, section := range sections {
		got = append(got, section[1])
	}
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("docs/alerts.md has the sections\n%q, and the files the alerts\n%q", got, want)
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

// peers are the modules of test/node/parts that users run beside the plugin, by their names in the table of
// docs/runtimes.md, and the other pages that say which version was run.
var peers = []struct{ name, part, module, page string }{
	{name: "Kubernetes", part: "kubernetes", module: "k8s.io/kubernetes"},
	{name: "runc", part: "runc", module: "github.com/opencontainers/runc"},
	{name: "RDMA shared device plugin", part: "k8s-rdma-shared-dev-plugin",
		module: "github.com/Mellanox/k8s-rdma-shared-dev-plugin", page: "docs/hcas-for-pods.md"},
	{name: "CNI plugins", part: "cni", module: "github.com/containernetworking/plugins", page: "docs/hcas-for-pods.md"},
	{name: "NVIDIA Container Toolkit", part: "nvidia-ctk", module: "github.com/NVIDIA/nvidia-container-toolkit"},
	{name: "Docker", part: "docker", module: "github.com/moby/moby/v2"},
	{name: "Helm", part: "helm", module: "helm.sh/helm/v4"},
}

// versionOf returns the version of a module that the node has.
func versionOf(t *testing.T, part, module string) string {
	t.Helper()
	file := path.Join("test/node/parts", part, "go.mod")
	found := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(module) + ` v(\S+)`).FindStringSubmatch(
		repository.Read(t, file))
	if found == nil {
		t.Fatalf("%s does not require %s", file, module)
	}
	return found[1]
}

// The pages have the versions that the node has. Whoever changes one has run the tests with it.
func TestVersionsThatWereRun(t *testing.T) {
	for _, p := range peers {
		version := versionOf(t, p.part, p.module)
		if row := "\n| " + p.name + " | " + version + " |"; !strings.Contains(repository.Read(t, "docs/runtimes.md"), row) {
			t.Errorf("docs/runtimes.md has no row that begins with %q: when the tests have passed with the version of "+
				"test/node/parts/%s, write it there", row, p.part)
		}
		if p.page != "" && !strings.Contains(repository.Read(t, p.page), "use version "+version) {
			t.Errorf(`%s does not say "use version %s" of the %s`, p.page, version, p.name)
		}
	}
}

// Dependabot proposes new versions of all parts of the node but those whose version is meant.
func TestDependabotKnowsTheParts(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string `json:"package-ecosystem"`
			Directories []string
			Allow       []struct {
				Name string `json:"dependency-name"`
				Type string `json:"dependency-type"`
			}
		}
	}
	if err := yaml.Unmarshal([]byte(repository.Read(t, ".github/dependabot.yml")), &config); err != nil {
		t.Fatal(err)
	}
	allowed, dirs := []string{}, []string{}
	for _, u := range config.Updates {
		dirs = append(dirs, u.Directories...)
		for _, a := range u.Allow {
			if a.Type == "all" { // Go marks the module of a tool as indirect
				allowed = append(allowed, a.Name)
			}
		}
	}
	parts, err := filepath.Glob(repository.Path(t, "test/node/parts/*"))
	if err != nil || len(parts) == 0 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	// Kubernetes' go.mod replaces its modules one by one, and the DRA driver's modules are of the same version.
	meant := regexp.MustCompile(`-\d+\.\d+\.\d+$|^kubernetes$|^dra-driver$`)
	for _, dir := range parts {
		part := filepath.Base(dir)
		if meant.MatchString(part) {
			continue
		}
		text := repository.Read(t, path.Join("test/node/parts", part, "go.mod"))
		tool := regexp.MustCompile(`(?m)^(?:tool |tool \(\n\t)([^\s(]\S*)`).FindStringSubmatch(text)
		named := tool != nil && slices.ContainsFunc(allowed, func(m string) bool { return strings.HasPrefix(tool[1]+"/", m+"/") })
		if !named || !slices.Contains(dirs, "/test/node/parts/"+part) {
			t.Errorf(".github/dependabot.yml does not have test/node/parts/%s, whose tool is %q", part, tool)
		}
	}
}
