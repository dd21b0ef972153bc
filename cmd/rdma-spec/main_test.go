// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) {
	// it is called as the program, by a test or by the program itself
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		if root := os.Getenv(manyRegionsBelow); root != "" {
			rdma.Dial = rdmatest.Kernel(manyRegions()...)
			_ = os.WriteFile(filepath.Join(root, selfStatus), self(), 0o600) // the test misses it
		}
		status := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		if file := os.Getenv(memoryInto); file != "" {
			text, _ := os.ReadFile("/proc/self/status") // the test misses it
			_ = os.WriteFile(file, text, 0o600)
		}
		os.Exit(status)
	}
	node.SecondLookAfter = 0
	os.Exit(m.Run())
}

// memoryInto is the variable that names the file for /proc/self/status of the program, as a process has it in the end.
// What wait4 says of a program's memory includes that of its parent.
const memoryInto = "RDMA_SPEC_TEST_MEMORY"

// outcome is what a call leaves behind.
type outcome struct {
	Status         int
	Stdout, Stderr string
}

// call runs the program with something on standard input.
func call(stdin string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	status := run(args, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{status, stdout.String(), stderr.String()}
}

// words runs the program with the words of a line, and with further arguments.
func words(line string, more ...string) outcome {
	return call("", append(strings.Fields(line), more...)...)
}

// configFile returns a file with a text, as a configuration has it.
func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	scratch.File(t, file, text, 0o644)
	return file
}

func TestRunSaysHowItWasCalledWrongly(t *testing.T) {
	for args, want := range map[string]string{
		"frobnicate": "rdma-spec: unknown command \"frobnicate\" for \"rdma-spec\"; see 'rdma-spec " +
			"--help'\n",
		"generat":               "rdma-spec: unknown command \"generat\" for \"rdma-spec\"; see 'rdma-spec --help'\n",
		"--frobnicate":          "rdma-spec: unknown flag: --frobnicate; see 'rdma-spec --help'\n",
		"generate --frobnicate": "rdma-spec: unknown flag: --frobnicate; see 'rdma-spec generate --help'\n",
		"generate -o spec.json": "rdma-spec: unknown shorthand flag: 'o' in -o: to write a file, name it with --to; " +
			"see 'rdma-spec generate --help'\n",
		"cdi generate --output a.yaml": "rdma-spec: unknown flag: --output: to write a file, name it with --to; see " +
			"'rdma-spec cdi generate --help'\n",
		"doctor -o /tmp/x": "rdma-spec: invalid argument \"/tmp/x\" for \"-o, --output\" flag: must be one of " +
			"table, json, npd, prometheus: to write a file, name it with --to; see 'rdma-spec doctor --help'\n",
		"devices -o node.json": "rdma-spec: invalid argument \"node.json\" for \"-o, --output\" flag: must be one " +
			"of table, json, yaml: to write a file, redirect standard output; see 'rdma-spec devices --help'\n",
		"generate -x":        "rdma-spec: unknown shorthand flag: 'x' in -x; see 'rdma-spec generate --help'\n",
		"generate --memlock": "rdma-spec: flag needs an argument: --memlock; see 'rdma-spec generate --help'\n",
		"generate --ipc-lock=perhaps": "rdma-spec: invalid argument \"perhaps\" for \"--ipc-lock\" flag: " +
			"strconv.ParseBool: parsing \"perhaps\": invalid syntax; see 'rdma-spec generate --help'\n",
		"generate spec.json": "rdma-spec: unknown command \"spec.json\" for \"rdma-spec generate\"; see " +
			"'rdma-spec generate --help'\n",
		"version please": "rdma-spec: unknown command \"please\" for \"rdma-spec version\"; see 'rdma-spec " +
			"version --help'\n",
	} {
		if diff := cmp.Diff(outcome{2, "", want}, words(args)); diff != "" {
			t.Errorf("rdma-spec %s (-want +got):\n%s", args, diff)
		}
	}
}

func TestRunHelps(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"generate", "--help"}} {
		got := call("", args...)
		if got.Status != 0 || got.Stderr != "" || !strings.Contains(got.Stdout, "Usage:\n  rdma-spec") {
			t.Errorf("rdma-spec %v: %+v", args, got)
		}
	}
}

// -o, --output is the format of a result, whatever the command.
func TestOutputFlagsMeanOneThing(t *testing.T) {
	formats := 0
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			_, format := f.Value.(*cli.FormatFlag)
			if format {
				formats++
			}
			if (f.Shorthand == "o") != format || (f.Name == "output") != format {
				t.Errorf("%s has -%s, --%s: a format is %v", c.CommandPath(), f.Shorthand, f.Name, format)
			}
		})
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(newRootCommand())
	if formats == 0 {
		t.Error("no command has a format")
	}
}

func TestVersion(t *testing.T) {
	for _, how := range []string{"version", "--version"} {
		if diff := cmp.Diff(outcome{0, "rdma-spec " + version + "\n", ""}, call("", how)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", how, diff)
		}
	}
}
