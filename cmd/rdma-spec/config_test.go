// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// written puts a configuration into a file.
func written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigCheck(t *testing.T) {
	for _, test := range []struct {
		name, config string
		want         outcome // FILE stands for the file
	}{
		{"the defaults", "{}", outcome{0, "FILE is good: 0 rules\n", ""}},
		{"a rule", "rules: [{match: {namespaces: [a]}}]", outcome{0, "FILE is good: 1 rule\n", ""}},
		{"several problems", "{memlock: much, ipcLock: force}", outcome{1, "",
			"FILE: memlock: memlock \"much\" is not a size: write unlimited, or bytes such as 16Gi or 500M, or memory-limit\n" +
				"FILE: ipcLock: \"force\" is not one of true, false, always\n"}},
		{"an unknown key", "memlok: 1Gi", outcome{1, "",
			"FILE: unknown field \"memlok\"\n"}},
		{"a rule that is never reached", "rules: [{name: all, match: {namespaces: ['*']}}, {match: {namespaces: [ml]}}]", outcome{1, "",
			"FILE: rules[1]: it can never match, since rules[0] matches all that it does and comes first: change their order, or remove one\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := written(t, test.config)
			got := call("", "config", "check", file)
			got.Stdout, got.Stderr = strings.ReplaceAll(got.Stdout, file, "FILE"), strings.ReplaceAll(got.Stderr, file, "FILE")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	folder := t.TempDir()
	for file, want := range map[string]string{
		"testdata/none.yaml": "testdata/none.yaml: cannot read the configuration: stat testdata/none.yaml: no such file or directory\n",
		folder:               folder + ": is not a regular file: expected the configuration, YAML\n",
	} {
		if diff := cmp.Diff(outcome{1, "", want}, call("", "config", "check", file)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	for _, args := range [][]string{{"config", "check", "a", "b"}, {"config", "show", "a", "b"}, {"config", "frobnicate"}} {
		if got := call("", args...); got.Status != 2 || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestConfigShow(t *testing.T) {
	const text = `memlock: 16Gi
ipcLock: false
optIn:
  devices: true
  resources: [rdma/*, "*/hostdev"]
  namespaces: []
inject:
  namespaces: []
  names: ['*']
  functions: [physical]
  linkLayers: []
  netdevs: []
  numaNodes: []
  management: false
repair:
  mode: report
  every: 30s
skipRuntimeHandlers: [kata*, runsc*]
rules:
  - name: "true"
    match:
      namespaces: [ml-*]
    memlock: memory-limit
`
	want := strings.ReplaceAll(text, `"*/hostdev"`, "'*/hostdev'")
	got := call("", "config", "show", written(t, `
rules: [{memlock: memory-limit, match: {namespaces: [ml-*]}, name: "true"}]
optIn: {resources: [rdma/*, "*/hostdev"]}
ipcLock: false
memlock: 16Gi
`))
	if diff := cmp.Diff(outcome{0, want, ""}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	again := call("", "config", "show", written(t, got.Stdout))
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("what it shows is not shown again (-first +second):\n%s", diff)
	}
	if got := call("", "config", "show", "testdata/none.yaml"); got.Status != 3 || got.Stdout != "" {
		t.Errorf("no such file: %+v", got)
	}
}

// TestConfigShowTakesWhatItShows: the defaults, shown and read, are the defaults.
func TestConfigShowTakesWhatItShows(t *testing.T) {
	shown := call("", "config", "show", written(t, "{}"))
	config, err := policy.Parse([]byte(shown.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(policy.Default(), config); diff != "" {
		t.Errorf("-default +shown:\n%s", diff)
	}
}
