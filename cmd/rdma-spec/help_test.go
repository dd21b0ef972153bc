// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/spec/hca"
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
		help := program.Call("", append(strings.Fields(c.CommandPath())[1:], "--help")...)
		for line := range strings.Lines(help.Stdout) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n >= 100 {
				t.Errorf("%s --help has a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		if help.Status != 0 || help.Stderr != "" {
			t.Errorf("%s --help: %+v", c.CommandPath(), help)
		}
		if !strings.Contains(c.Example, c.CommandPath()+" ") && !strings.HasSuffix(c.Example, c.CommandPath()) &&
			!strings.Contains(c.Example, c.CommandPath()+"\n") {
			t.Errorf("%s has no example", c.CommandPath())
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "")
	root := hcatest.V100(t)
	runtime := critest.Serve(t, critest.Options{}, nodetest.Holder(1, 0, "train-1"), nodetest.Holder(2, 0, "train-0"), nodetest.Other(3, "web"))
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
		if got := program.Completions(args...); !strings.HasPrefix(got, want) {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	if got := program.Completions("status", "--root", scratch.Dir(t), ""); strings.Contains(got, "/") {
		t.Errorf("without a runtime: %q", got)
	}
}

// No command's result is lost with exit status 0 where nothing can be written to standard output.
func TestExecute_fullStandardOutput(t *testing.T) {
	root, file := hcatest.V100(t), clitest.File(t, "{}")
	_, containers := nodetest.Low()
	flags := nodetest.By(t, "{}", nodetest.Serve(t, root, containers...))
	reverted, registered := []string{"--revert", "--root", scratch.Dir(t)}, scratch.Dir(t)
	register(t, registered, "{}", "the defaults")
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
		"why":                   {"ibv_reg_mr failed: Bad address"},
		"configure nri":         reverted,
		"configure handler":     append([]string{"rdma"}, reverted...),
		"configure limits":      reverted,
		"configure plugin":      reverted,
		"configure cdi":         reverted,
		"cdi generate":          {"--root", root},
		"cdi list":              {"--root", root},
		"collect":               {"--root", root},
		"doctor":                {"--root", root},
		"wait":                  {"--root", registered},
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
				status := execute(args, strings.NewReader(""), full, &stderr)
				lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
				const want = "rdma-spec: cannot write to standard output: no space left on device: free up space on the file system, and retry"
				if status != 3 || lines[len(lines)-1] != want || strings.Count(stderr.String(), "standard output") != 1 {
					t.Errorf("exit status %d, want 3; stderr %q, want %q", status, lines, want)
				}
			})
		}
	}
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

// Another process reads HCAs as this one does.
func TestProcessReader(t *testing.T) {
	for name, make := range hcatest.All {
		root := make(t)
		listed, err := hca.List(root)
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]hca.HCA{}, map[string]hca.HCA{}
		var names []string
		for _, h := range listed.HCAs {
			names = append(names, h.Name)
			want[h.Name] = hca.Read(root, h.Name)
		}
		for h := range node.ProcessReader(root)(names) {
			got[h.Name] = h
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
			cmpopts.IgnoreFields(hca.HCA{}, "Place")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// One HCA that does not answer does not keep the others, and its reader is left behind.
func TestProcessReader_silentHCA(t *testing.T) {
	root := hcatest.V100(t)
	unblock := hcatest.Block(t, root, hcatest.Dir("mlx5_0", "0000:5e:00.0")+"/ports/1/state")
	answers := node.ProcessReader(root)([]string{"mlx5_0", "mlx5_1"})
	if h := <-answers; h.Name != "mlx5_1" || !h.Active() {
		t.Errorf("%+v", h)
	}
	select {
	case h := <-answers:
		t.Errorf("%+v", h)
	default:
	}
	unblock()
	if h := <-answers; h.Name != "mlx5_0" || !h.Active() {
		t.Errorf("%+v", h)
	}
	if _, more := <-answers; more {
		t.Error("there are more than two")
	}
}

// Who reads in a container leaves no zombie to a first process that waits for none.
func TestReaderOfHCAsHasEnded(t *testing.T) {
	names := []string{"mlx5_0", "mlx5_1"}
	answers := node.ProcessReader(hcatest.V100(t))(names)
	for range names {
		<-answers
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("after the last answer there is a process to wait for: %v", err)
	}
}

// Only the kernel's own sysfs is read by another process.
func TestLiveReader_notForCopies(t *testing.T) {
	if node.LiveReader(hcatest.V100(t)) != nil || node.LiveReader("/nowhere") != nil {
		t.Error("a copy is read apart")
	}
}
