// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// commands returns the root command and all commands below it but cobra's own, and those that only packages use.
func commands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, child := range c.Commands() {
		if !child.Hidden {
			all = append(all, commands(child)...)
		}
	}
	return all
}

// Help fits a terminal, and each command has an example that is a call of it.
func TestHelp(t *testing.T) {
	for _, c := range commands(newRootCommand()) {
		help := call("", append(strings.Fields(c.CommandPath())[1:], "--help")...)
		for line := range strings.Lines(help.Stdout) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n >= 100 {
				t.Errorf("%s --help has a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		if !strings.Contains(c.Example, c.CommandPath()+" ") && !strings.HasSuffix(c.Example, c.CommandPath()) &&
			!strings.Contains(c.Example, c.CommandPath()+"\n") {
			t.Errorf("%s has no example", c.CommandPath())
		}
	}
}

// The help of the program has its commands in groups.
func TestCommandsAreInGroups(t *testing.T) {
	help := call("", "--help").Stdout
	for title, names := range map[string]string{
		"On a node:": "collect devices doctor repair status wait", "For a pod:": "explain verify",
		"Configuration:": "cdi config configure generate",
	} {
		_, rest, found := strings.Cut(help, "\n"+title+"\n")
		group, _, _ := strings.Cut(rest, "\n\n")
		var got []string
		for line := range strings.Lines(group) {
			got = append(got, strings.Fields(line)[0])
		}
		if !found || strings.Join(got, " ") != names {
			t.Errorf("%s has %v, want %s", title, got, names)
		}
	}
}

// completions are what a shell offers at the end of a command line.
func completions(t *testing.T, args ...string) string {
	t.Helper()
	got := call("", append([]string{"__complete"}, args...)...)
	words, _, _ := strings.Cut(got.Stdout, "\n:")
	return strings.ReplaceAll(words, "\n", " ")
}

func TestCompletion(t *testing.T) {
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "")
	root := hcatest.V100(t)
	runtime := critest.Serve(t, critest.Options{}, holder(1, 0, "train-1"), holder(2, 0, "train-0"), other(3, "web"))
	for want, args := range map[string][]string{
		"table json yaml":              {"status", "-o", ""},
		"text json yaml":               {"config", "check", "--output", ""},
		"ml/train-0 ml/train-1 ml/web": {"repair", "--runtime-endpoint", runtime.Socket, ""},
		"ml/train-1 ml/web":            {"status", "--runtime-endpoint", runtime.Socket, "ml/train-0", ""},
		"mlx5_0 mlx5_1":                {"explain", "--root", root, "--hca", ""},
		"mlx5_1,mlx5_0":                {"explain", "--root", root, "--hca", "mlx5_1,"},
		"none all mlx5_0 mlx5_1":       {"generate", "--root", root, "--devices", ""},
		"all mlx5_0 mlx5_1":            {"cdi", "generate", "--root", root, "--devices", ""},
		"containerd docker crio nodeadm talos bottlerocket systemd": {"generate", "--for", ""},
	} {
		if got := completions(t, args...); !strings.HasPrefix(got, want) {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	if got := completions(t, "status", "--root", scratch.Folder(t), ""); strings.Contains(got, "/") {
		t.Errorf("without a runtime: %q", got)
	}
}

// A program reads what verify and repair found.
func TestStructuredResults(t *testing.T) {
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "8388608 8388608", plain)
	runtime := critest.Serve(t, critest.Options{}, holder(1, 0, "train-0"))
	file := configFile(t, "memlock: 16Gi")
	got := call("", "repair", "--dry-run", "-o", "json", "--config", file, "--root", files.Root(t),
		"--runtime-endpoint", runtime.Socket)
	want := `{
  "apiVersion": "rdma-spec/v1alpha1",
  "kind": "Repair",
  "policy": {
    "file": "` + file + `"
  },
  "runtimes": [
    {
      "name": "containerd",
      "version": "v2.4.2",
      "socket": "` + runtime.Socket + `"
    }
  ],
  "dryRun": true,
  "lookedAt": 1,
  "containers": [
    {
      "namespace": "ml",
      "pod": "train-0",
      "container": "main",
      "id": "` + containerID(1) + `",
      "memlock": "16Gi",
      "memlockBytes": 17179869184,
      "processes": 1,
      "storedSpec": true
    }
  ]
}
`
	if got != (outcome{1, want, ""}) {
		t.Errorf("repair: %d, %q\n%s", got.Status, got.Stderr, got.Stdout)
	}
	got = call("", "verify", "--lock", "4Ki", "-o", "json")
	var verified struct {
		Findings []struct{ Check, Status, Text string }
		Verdict  struct{ Causes []string }
	}
	if err := json.Unmarshal([]byte(got.Stdout), &verified); err != nil || len(verified.Findings) < 4 ||
		len(verified.Verdict.Causes) > 0 != (got.Status == 1) {
		t.Errorf("verify: %d, %v\n%s", got.Status, err, got.Stdout)
	}
}
