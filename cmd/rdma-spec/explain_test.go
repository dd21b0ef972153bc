// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// TestExplainGolden compares all that explain says, and its exit status.
func TestExplainGolden(t *testing.T) {
	const (
		training = "-f testdata/explain/training.yaml"
		mistakes = "-f testdata/explain/mistakes.yaml"
		defaults = " --config testdata/explain/defaults.yaml"
		config   = " --config testdata/explain/config.yaml"
	)
	for name, test := range map[string]struct{ args, root string }{
		"open":          {training + defaults + " --hca mlx5_0", ""},
		"assumed":       {training + config + " --hca mlx5_0,mlx5_1 --assume-devices rdma/*,nvidia.com/hostdev", ""},
		"json":          {training + config + " --hca mlx5_0 -o json", ""},
		"yaml":          {training + config + " --hca mlx5_0 -o yaml", ""},
		"node":          {training + config, hcatest.V100(t)},
		"without-hcas":  {training + config, hcatest.NoRDMA(t)},
		"mistakes":      {mistakes + config + " --hca mlx5_0", ""},
		"mistakes-json": {mistakes + config + " --hca mlx5_0 -o json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var root []string
			if test.root != "" {
				root = []string{"--root", test.root}
			}
			got := words("explain "+test.args, root...)
			text := fmt.Sprintf("# rdma-spec explain %s\n%s\n# on stderr\n%s\n# exit status %d\n", test.args,
				got.Stdout, got.Stderr, got.Status)
			golden.Compare(t, "testdata/explain/"+name+".golden", text)
		})
	}
}

// The policy of a node below a root is that node's: the one in force, and where no plugin runs its file.
func TestExplainByTheNodesPolicy(t *testing.T) {
	root := hcatest.V100(t)
	args := "explain -f ../../deploy/examples/annotation-one-hca.yaml -o json --root " + root
	config := filepath.Join(root, "etc/rdma-spec/config.yaml")
	scratch.File(t, config, "{}", 0o644)
	if got := words(args); !strings.Contains(got.Stdout, fmt.Sprintf(`"configuration": %q`, config)) {
		t.Errorf("no plugin runs: %+v", got)
	}
	scratch.File(t, filepath.Join(root, "run/rdma-spec/policy.yaml"), "nonsense", 0o644)
	if got := words(args); got.Status != 3 || !strings.Contains(got.Stderr,
		"run/rdma-spec/policy.yaml cannot be read as a policy") {
		t.Errorf("the policy in force cannot be read: %+v", got)
	}
}

// Of manifests in the shape of those of public projects, explain leaves out nothing that could make RDMA containers.
func TestExplainPublic(t *testing.T) {
	files, err := filepath.Glob("testdata/explain/public/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	source := regexp.MustCompile(`(?m)^# https://github.com/\S+/\S+\n# \S+\n# at commit [0-9a-f]{40}$`)
	document, comment := regexp.MustCompile(`(?m)^---$`), regexp.MustCompile(`(?m)^#.*$`)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest, err := os.ReadFile(file)
			if err != nil || !source.Match(manifest) {
				t.Errorf("%v; expected the repository, path, and commit of its source in a comment", err)
			}
			args := "explain --config testdata/explain/defaults.yaml --hca mlx5_0 -f " + file
			got := words(args)
			text := fmt.Sprintf("%s\n# on stderr\n%s\n# exit status %d\n", got.Stdout, got.Stderr, got.Status)
			golden.Compare(t, strings.TrimSuffix(file, "yaml")+"golden", text)

			var result struct {
				Pods        []struct{ Document int }
				Unexplained []string
			}
			_ = json.Unmarshal([]byte(words(args, "-o", "json").Stdout), &result) // none at exit status 3
			for i, text := range document.Split(comment.ReplaceAllString(string(manifest), ""), -1) {
				named := strings.Contains(strings.Join(result.Unexplained, "\n"), fmt.Sprintf("document %d, ", i+1))
				for _, pod := range result.Pods {
					named = named || pod.Document == i+1
				}
				if may := strings.Contains(text, "ontainer") || strings.Contains(text, "limits:"); may != named {
					t.Errorf("document %d may make containers: %t; it is explained or named: %t\n%s", i+1, may, named, text)
				}
			}
		})
	}
}

const plainPod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}"

func TestExplainExitStatus(t *testing.T) {
	broken := configFile(t, "memlok: 1Gi\n")
	for _, test := range []struct {
		name, manifest, args string
		status               int
		stderr               string
	}{
		{"nothing wrong", plainPod, "-f - --hca mlx5_0", 0, ""},
		{"a JSON manifest",
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}`,
			"-f - --hca mlx5_0", 0, ""},
		{"no manifest", plainPod, "", 2, "rdma-spec: name a manifest with -f; see 'rdma-spec explain --help'\n"},
		{"no glob", plainPod, "-f - --assume-devices [", 2,
			"rdma-spec: --assume-devices \"[\" is not a glob such as rdma/*; see 'rdma-spec explain --help'\n"},
		{"an argument", plainPod, "pod.yaml", 2,
			"rdma-spec: unknown command \"pod.yaml\" for \"rdma-spec explain\"; see 'rdma-spec explain --help'\n"},
		{"no such manifest", "", "-f testdata/none.yaml", 3,
			"rdma-spec: cannot read the manifest: open testdata/none.yaml: no such file or directory\n"},
		{"not YAML", plainPod + "\n---\na: [\n", "-f -", 3,
			"rdma-spec: -: document 2: not YAML: line 3: did not find expected node content\n"},
		{"no pods", "{apiVersion: v1, kind: Service, metadata: {name: a}}", "-f -", 3,
			"rdma-spec: -: no containers in it: expected a Pod, or another object that has a list of containers\n"},
		{"nothing", "", "-f -", 3,
			"rdma-spec: -: no containers in it: expected a Pod, or another object that has a list of containers\n"},
		{"no such configuration", plainPod, "-f - --config testdata/none.yaml", 3,
			"rdma-spec: cannot read the configuration: stat testdata/none.yaml: no such file or directory\n"},
		{"no such root", plainPod, "-f - --root testdata/none", 3,
			"rdma-spec: root \"testdata/none\": no such file or directory: give the folder that holds the node's sys and dev\n"},
		{"a bad configuration", plainPod, "-f - --config " + broken, 3, "rdma-spec: " + broken +
			": unknown field \"memlok\"\n"},
	} {
		got := call(test.manifest, strings.Fields("explain "+test.args)...)
		if got.Status != test.status || got.Stderr != test.stderr || (got.Stdout != "") != (test.status == 0) {
			t.Errorf("%s: %+v, want %d, %q", test.name, got, test.status, test.stderr)
		}
	}
}

// TestExplainDoesNotSteerTheTerminal: a chart that somebody else wrote is piped into it.
func TestExplainDoesNotSteerTheTerminal(t *testing.T) {
	got := call(`{apiVersion: v1, kind: Pod, metadata: {name: "\e[2J\r"}, spec: {containers: [{name: "\u009b31m", resources: x}]}}`, "explain", "-f", "-", "--hca", "mlx5_0")
	if strings.ContainsAny(got.Stdout, "\x1b\r\u009b") || !strings.Contains(got.Stdout, "\ufffd[2J\ufffd") {
		t.Errorf("%q", got.Stdout)
	}
}
