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

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

// All that explain says, and its exit status.
func TestExplain_golden(t *testing.T) {
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}"
	program.Compare(t, "explain/explain", map[string]string{
		"POD": pod, "BROKEN": pod + "\n---\na: [\n", "WRONG": clitest.File(t, "memlok: 1Gi\n"),
		"JSON":     `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}`,
		"TRAINING": "testdata/explain/training.yaml", "MISTAKES": "testdata/explain/mistakes.yaml",
		"DEFAULTS": "testdata/explain/defaults.yaml", "CONFIG": "testdata/explain/config.yaml",
		"V100": hcatest.V100(t), "NO-RDMA": hcatest.NoRDMA(t),
	}, `
		explain -f TRAINING --config DEFAULTS --hca mlx5_0
		explain -f TRAINING --config CONFIG --hca mlx5_0,mlx5_1 --assume-devices rdma/*,nvidia.com/hostdev
		explain -f TRAINING --config CONFIG --hca mlx5_0 -o json
		explain -f TRAINING --config CONFIG --hca mlx5_0 -o yaml
		explain -f TRAINING --config CONFIG --root V100
		explain -f TRAINING --config CONFIG --root NO-RDMA
		explain MISTAKES --config CONFIG --hca mlx5_0
		explain -f MISTAKES --config CONFIG --hca mlx5_0 -o json
		explain -f - --hca mlx5_0 --config DEFAULTS <<< POD
		explain -f - --hca mlx5_0 --config DEFAULTS <<< JSON

		explain -f testdata/none.yaml
		explain -f -
		explain -f - <<< BROKEN
		explain -f - <<< {apiVersion: v1, kind: Service, metadata: {name: a}}
		explain -f - --config testdata/none.yaml <<< POD
		explain -f - --config WRONG <<< POD
		explain -f - --root testdata/none <<< POD`)
}

// Of manifests in the shape of those of public projects, explain leaves out nothing that could make RDMA containers.
func TestExplain_publicManifests(t *testing.T) {
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
			got := program.Words(args)
			text := fmt.Sprintf("%s\n# on stderr\n%s\n# exit status %d\n", got.Stdout, got.Stderr, got.Status)
			golden.Compare(t, strings.TrimSuffix(file, "yaml")+"golden", text)

			var result struct {
				Pods        []struct{ Document int }
				Unexplained []string
			}
			_ = json.Unmarshal([]byte(program.Words(args, "-o", "json").Stdout), &result) // none at exit status 3
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

// TestExplain_noControlCharacters: a chart that somebody else wrote is piped into it.
func TestExplain_noControlCharacters(t *testing.T) {
	got := program.Call(`{apiVersion: v1, kind: Pod, metadata: {name: "\e[2J\r"}, spec: {containers: [{name: "\u009b31m", resources: x}]}}`, "explain", "-f", "-", "--hca", "mlx5_0")
	if strings.ContainsAny(got.Stdout, "\x1b\r\u009b") || !strings.Contains(got.Stdout, "\ufffd[2J\ufffd") {
		t.Errorf("%q", got.Stdout)
	}
}
