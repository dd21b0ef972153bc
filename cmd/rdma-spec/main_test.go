// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/rdma/rdmatest"
)

func TestMain(m *testing.M) {
	// it is called as the program, by a test or by the program itself
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		if root := os.Getenv(manyRegionsBelow); root != "" {
			rdma.Dial = rdmatest.Kernel(manyRegions()...)
			_ = os.WriteFile(filepath.Join(root, nodetest.SelfStatus), nodetest.Self(), 0o600) // the test misses it
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

// program is the whole of rdma-spec.
var program = clitest.Program(execute)

// Each call is wrong, has exit status 2, and gets one line, which says what to do.
func TestExecute_wrongCalls(t *testing.T) {
	program.Compare(t, "wrong-calls", nil, `
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
func TestHelp_commandGroups(t *testing.T) {
	program.Compare(t, "help", nil, "--help")
	for _, args := range [][]string{{}, {"help"}} {
		if diff := cmp.Diff(program.Call("", "--help"), program.Call("", args...)); diff != "" {
			t.Errorf("rdma-spec %v (-by the flag +got):\n%s", args, diff)
		}
	}
}

// -o, --output is the format of a result, whatever the command.
func TestNewRootCommand_outputFlags(t *testing.T) {
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
		if diff := cmp.Diff(clitest.Outcome{Status: 0, Stdout: "rdma-spec " + version + "\n", Stderr: ""}, program.Call("", how)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", how, diff)
		}
	}
}
