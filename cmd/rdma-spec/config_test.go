// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// config check and config show name the file as it was named, or standard input. FILE stands for a file.
func TestConfigCheck(t *testing.T) {
	folder := scratch.Folder(t)
	for _, test := range []struct {
		config, args string
		want         outcome
	}{
		{"{}", "check FILE", outcome{0, "FILE is valid: 0 rules\n", ""}},
		{"rules: [{match: {namespaces: [a]}}]", "check FILE", outcome{0, "FILE is valid: 1 rule\n", ""}},
		{"{memlock: much, ipcLock: force}", "check FILE", outcome{1, "",
			"FILE: memlock: memlock \"much\" is not a size: write unlimited, or bytes such as 16Gi or 500M, or memory-limit\n" +
				"FILE: ipcLock: \"force\" is not one of true, false, requested, always\n"}},
		{"", "check testdata/none.yaml", outcome{3, "",
			"rdma-spec: cannot read the configuration: stat testdata/none.yaml: no such file or directory\n"}},
		{"", "check " + folder, outcome{1, "", folder + ": is not a regular file: expected the configuration, YAML\n"}},
		{"rules: []", "check -", outcome{0, "standard input is valid: 0 rules\n", ""}},
		{"rules: [{match: {resources: [rdma/*]}}]", "check -", outcome{0, "standard input is valid: 1 rule\n",
			"standard input: warning: rules[0].match: it names resources for all namespaces, so every container of the node " +
				"waits for the kubelet's answer when it starts: name the namespaces\n"}},
		{"memlok: 1Gi", "check -", outcome{1, "", "standard input: unknown field \"memlok\"\n"}},
		{"memlok: 1Gi", "show -", outcome{3, "", "rdma-spec: standard input: unknown field \"memlok\"\n"}},
		{"rules: []", "check - -o json", outcome{0, `{
  "apiVersion": "rdma-spec/v1alpha1",
  "kind": "ConfigCheck",
  "file": "standard input",
  "valid": true,
  "rules": 0,
  "problems": []
}
`, ""}},
		{"memlok: 1Gi", "check - -o yaml", outcome{1, `apiVersion: rdma-spec/v1alpha1
file: standard input
kind: ConfigCheck
problems:
- unknown field "memlok"
rules: 0
valid: false
`, ""}},
	} {
		file := configFile(t, test.config)
		got := call(test.config, strings.Fields("config "+strings.ReplaceAll(test.args, "FILE", file))...)
		got.Stdout, got.Stderr = strings.ReplaceAll(got.Stdout, file, "FILE"), strings.ReplaceAll(got.Stderr, file, "FILE")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.args, diff)
		}
	}
	// Without a file, the plugin's own is checked, whether this host has one or not.
	if got := words("config check"); !strings.Contains(got.Stdout+got.Stderr, "/etc/rdma-spec/config.yaml") {
		t.Errorf("without a file: %+v", got)
	}
	for _, args := range []string{"config check a b", "config show a b", "config frobnicate"} {
		if got := words(args); got.Status != 2 || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestConfigShow(t *testing.T) {
	const want = `inject:
  functions:
  - physical
  linkLayers: []
  management: false
  names:
  - '*'
  namespaces: []
  netdevs: []
  numaNodes: []
ipcLock: false
memlock: 16Gi
optIn:
  devices: true
  mofedRuntimeHandlers: []
  namespaces: []
  resources:
  - rdma/*
  - '*/hostdev'
repair:
  every: 30s
  mode: report
rules:
- match:
    namespaces:
    - ml-*
  memlock: memory-limit
  name: "true"
skipRuntimeHandlers:
- kata*
- runsc*
- gvisor
- krun*
- contrast*
`
	got := call("", "config", "show", configFile(t, `
rules: [{memlock: memory-limit, match: {namespaces: [ml-*]}, name: "true"}]
optIn: {resources: [rdma/*, "*/hostdev"]}
ipcLock: false
memlock: 16Gi
`))
	if diff := cmp.Diff(outcome{0, want, ""}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	again := call("", "config", "show", configFile(t, got.Stdout))
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("what it shows is not shown again (-first +second):\n%s", diff)
	}
	if got := call("", "config", "show", "testdata/none.yaml"); got.Status != 3 || got.Stdout != "" {
		t.Errorf("no such file: %+v", got)
	}
}

// TestConfigShowTakesWhatItShows: the defaults, shown and read, are the defaults.
func TestConfigShowTakesWhatItShows(t *testing.T) {
	shown := call("", "config", "show", configFile(t, "{}"))
	config, err := policy.Parse([]byte(shown.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(policy.Default(), config); diff != "" {
		t.Errorf("-default +shown:\n%s", diff)
	}
}
