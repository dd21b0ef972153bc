// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

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
		if p.page != "" && !strings.Contains(repository.Read(t, p.page), "run with version "+version) {
			t.Errorf(`%s does not say "run with version %s" of the %s`, p.page, version, p.name)
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
	allowed, folders := []string{}, []string{}
	for _, u := range config.Updates {
		folders = append(folders, u.Directories...)
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
	for _, folder := range parts {
		part := filepath.Base(folder)
		if meant.MatchString(part) {
			continue
		}
		text := repository.Read(t, path.Join("test/node/parts", part, "go.mod"))
		tool := regexp.MustCompile(`(?m)^(?:tool |tool \(\n\t)([^\s(]\S*)`).FindStringSubmatch(text)
		named := tool != nil && slices.ContainsFunc(allowed, func(m string) bool { return strings.HasPrefix(tool[1]+"/", m+"/") })
		if !named || !slices.Contains(folders, "/test/node/parts/"+part) {
			t.Errorf(".github/dependabot.yml does not have test/node/parts/%s, whose tool is %q", part, tool)
		}
	}
}
