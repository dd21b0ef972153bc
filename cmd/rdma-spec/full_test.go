// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// No command's result is lost with exit status 0 where nothing can be written to standard output. The error is the
// kernel's own, of /dev/full.
func TestFullStandardOutput(t *testing.T) {
	root, file := hcatest.V100(t), configFile(t, "{}")
	_, containers := lowNode()
	runtime := critest.Serve(t, critest.Options{}, containers...)
	flags := []string{"--config", file, "--root", root, "--runtime-endpoint", runtime.Socket}
	reverted := []string{"--revert", "--root", scratch.Folder(t)}
	calls := map[string][]string{
		"generate":              {"--for", "docker"},
		"devices":               {"--root", root},
		node.ReadHCAs:           {"--root", root, "mlx5_0"},
		"explain":               {"-f", "../../deploy/examples/device-plugin.yaml", "--hca", "mlx5_0"},
		"config check":          {file},
		"config show":           {file},
		"status":                flags,
		"repair":                append([]string{"--dry-run"}, flags...),
		"verify":                {"--lock", "4Ki"},
		"configure nri":         reverted,
		"configure handler":     append([]string{"rdma"}, reverted...),
		"configure limits":      reverted,
		"configure plugin":      reverted,
		"configure cdi":         reverted,
		"cdi generate":          {"--root", root},
		"cdi list":              {"--root", root},
		"collect":               {"--root", root},
		"doctor":                {"--root", root},
		"wait":                  {"--root", withPlugin(t)},
		"version":               nil,
		"completion bash":       nil,
		"completion zsh":        nil,
		"completion fish":       nil,
		"completion powershell": nil,
		"help":                  nil,
	}
	for _, command := range leaves(newRootCommand()) {
		args, known := calls[command]
		if !known {
			t.Errorf("rdma-spec %s is not tested here", command)
		}
		for name, args := range map[string][]string{command: append(strings.Fields(command), args...), command +
			" --help": append(strings.Fields(command), "--help")} {
			t.Run(name, func(t *testing.T) {
				full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = full.Close() }() // nothing was written
				var stderr bytes.Buffer
				status := run(args, strings.NewReader(""), full, &stderr)
				lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
				const want = "rdma-spec: cannot write to standard output: no space left on device: make room there, and try again"
				if status != 3 || lines[len(lines)-1] != want || strings.Count(stderr.String(), "standard output") != 1 {
					t.Errorf("exit status %d, want 3; stderr %q, want %q", status, lines, want)
				}
			})
		}
	}
}

// withPlugin returns the root of a node whose plugin is registered.
func withPlugin(t *testing.T) (root string) {
	t.Helper()
	root = scratch.Folder(t)
	p, err := policy.New(policy.Default())
	if err == nil {
		err = os.Mkdir(filepath.Join(root, "run"), 0o755)
	}
	w := &inforce.Writer{Root: root}
	t.Cleanup(w.Close)
	if err == nil {
		err = w.Write(p, "the defaults")
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// leaves returns the calls of the commands that do something, and print.
func leaves(parent *cobra.Command) []string {
	if !parent.HasParent() { // those that cobra adds
		parent.InitDefaultHelpCmd()
		parent.InitDefaultCompletionCmd()
	}
	var calls []string
	for _, c := range parent.Commands() {
		if c.HasSubCommands() {
			calls = append(calls, leaves(c)...)
		} else if !c.Hidden { // man writes files
			calls = append(calls, strings.TrimPrefix(c.CommandPath(), "rdma-spec "))
		}
	}
	return calls
}
