// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestMain(m *testing.M) {
	// it is called as the program, by a test or by the program itself
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		if root := os.Getenv(manyRegionsBelow); root != "" {
			rdma.Dial = rdmatest.Kernel(manyRegions()...)
			_ = os.WriteFile(filepath.Join(root, selfStatus), self(), 0o600) // the test misses it
		}
		status := execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
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

// late is what the doctor and collect say on a busy machine.
var late = regexp.MustCompile(`(?m)^rdma-spec: there is no answer yet about .*\n`)

// call runs the program with something on standard input. What is late is left out.
func call(stdin string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	status := execute(args, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{status, stdout.String(), late.ReplaceAllString(stderr.String(), "")}
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

// compareCalls compares what calls of the program leave behind with a golden file. Each line is a call, or a comment.
// Names in capitals stand for paths and texts, and what is behind <<< is the standard input. Of a long standard output,
// gist is compared.
func compareCalls(t *testing.T, file string, names map[string]string, calls string, gist ...func(string) string) {
	t.Helper()
	var there, back []string
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(names))) { // a longer one before its beginning
		there, back = append(there, name, names[name]), append(back, names[name], name)
	}
	replaced, named := strings.NewReplacer(there...), strings.NewReplacer(back...)
	var all strings.Builder
	for line := range strings.Lines(strings.TrimSpace(calls)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			all.WriteString(line + "\n")
			continue
		}
		args, stdin, _ := strings.Cut(line, " <<< ")
		got := call(replaced.Replace(stdin), strings.Fields(replaced.Replace(args))...)
		for _, gist := range gist {
			got.Stdout = gist(got.Stdout)
		}
		fmt.Fprintf(&all, "$ rdma-spec %s\n%s--- stderr, %d\n%s\n", line, named.Replace(got.Stdout), got.Status,
			named.Replace(got.Stderr))
	}
	golden.Compare(t, filepath.Join("testdata", file+".txt"), all.String())
}

// Each call is wrong, has exit status 2, and gets one line, which says what to do.
func TestRunSaysHowItWasCalledWrongly(t *testing.T) {
	compareCalls(t, "wrong-calls", nil, `
		frobnicate
		generat
		--frobnicate
		version please
		generate --frobnicate
		generate -o spec.json
		generate -x
		completion tcsh
		doctor --timeout -1s
		generate --memlock
		generate --ipc-lock=perhaps
		generate spec.json
		generate --memlock lots
		generate --for podman
		generate --devices=
		generate --for docker --ipc-lock
		cdi generate --output a.yaml
		doctor -o /tmp/x
		doctor --only ports
		doctor --explain port
		devices -o node.json
		status train-0
		repair ml/
		repair /train-0
		repair ml/train/0
		repair ML/train
		explain
		explain -f - --assume-devices [
		explain -f - --assume-devices rdma
		explain -f - pod.yaml
		config check a b
		config show a b
		config frobnicate`)
}

// The help of the program has its commands in groups.
func TestHelpOfTheProgram(t *testing.T) {
	compareCalls(t, "help", nil, "--help")
	for _, args := range [][]string{{}, {"help"}} {
		if diff := cmp.Diff(call("", "--help"), call("", args...)); diff != "" {
			t.Errorf("rdma-spec %v (-by the flag +got):\n%s", args, diff)
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
