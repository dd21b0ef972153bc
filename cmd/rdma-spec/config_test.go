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
		{"several problems", "{memlock: much, optIn: {onKubeletError: cry}}", outcome{1, "",
			"FILE: memlock: memlock \"much\" is no size: write unlimited, or bytes such as 16Gi or 500M, or memory-limit\n" +
				"FILE: optIn.onKubeletError: \"cry\" is none of [skip fail]\n"}},
		{"an unknown key", "memlok: 1Gi", outcome{1, "",
			"FILE: unknown field \"memlok\": expected memlock, ipcLock, optIn, devices, repair, skipRuntimeHandlers, rules\n"}},
		{"a rule that is never reached", "rules: [{name: all, match: {namespaces: ['*']}}, {match: {namespaces: [ml]}, deny: true}]", outcome{0, "FILE is good: 2 rules\n",
			"FILE: warning: rules[1] can never match: rules[0] (all) matches all that it does and comes first: change their order, or remove one\n"}},
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
		folder:               folder + ": is no regular file: expected the configuration, YAML\n",
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
ipcLock: "false"
optIn:
  devices: true
  resources: [rdma/*, "*/hostdev"]
  onKubeletError: skip
  annotation:
    namespaces: []
  nvidiaMOFED:
    runtimeHandlers: []
devices:
  names: ['*']
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
      labels:
        a: "1"
    memlock: memory-limit
`
	want := strings.ReplaceAll(text, `"*/hostdev"`, "'*/hostdev'")
	got := call("", "config", "show", written(t, `
rules: [{memlock: memory-limit, match: {labels: {a: "1"}, namespaces: [ml-*]}, name: "true"}]
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

func TestUnreachable(t *testing.T) {
	for _, test := range []struct {
		earlier, later policy.Match
		covers         bool
	}{
		{policy.Match{Namespaces: []string{"ml-*"}}, policy.Match{Namespaces: []string{"ml-a", "ml-b*"}}, true},
		{policy.Match{Namespaces: []string{"ml-*"}}, policy.Match{Namespaces: []string{"ml-a", "web"}}, false},
		{policy.Match{Namespaces: []string{"ml-*"}}, policy.Match{Namespaces: []string{"ml*"}}, false},
		{policy.Match{Namespaces: []string{"ml-*"}}, policy.Match{}, false},
		{policy.Match{}, policy.Match{}, true},
		{policy.Match{}, policy.Match{Namespaces: []string{"a"}, Labels: map[string]string{"a": "b"}}, true},
		{policy.Match{Namespaces: []string{"a"}, Labels: map[string]string{"a": "b"}}, policy.Match{Namespaces: []string{"a"}}, false},
		{policy.Match{Labels: map[string]string{"a": "b"}}, policy.Match{Labels: map[string]string{"a": "b", "c": "d"}}, true},
		{policy.Match{Labels: map[string]string{"a": "b"}}, policy.Match{Labels: map[string]string{"a": "c"}}, false},
		{policy.Match{Resources: []string{"rdma/*"}}, policy.Match{Resources: []string{"rdma/a"}, RuntimeHandlers: []string{"x"}}, true},
		{policy.Match{Resources: []string{"*"}}, policy.Match{Resources: []string{"rdma/a"}}, false}, // * stands for no slash
		{policy.Match{Resources: []string{"*"}}, policy.Match{Resources: []string{"rdma/*"}}, false}, // nor here
		{policy.Match{Namespaces: []string{"a[b]"}}, policy.Match{Namespaces: []string{"ab"}}, true},
		{policy.Match{Namespaces: []string{"a[bc]*"}}, policy.Match{Namespaces: []string{"a[bc]x*"}}, false}, // true, but not told
		{policy.Match{Namespaces: []string{"a?"}}, policy.Match{Namespaces: []string{"a?"}}, true},
	} {
		rules := []policy.Rule{{Match: test.earlier}, {Match: test.later}}
		if got := len(unreachable(rules)) > 0; got != test.covers {
			t.Errorf("%+v covers %+v: %t, want %t", test.earlier, test.later, got, test.covers)
		}
	}
}
