// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clitest runs commands in the test's process as a shell would, and compares their output with golden files. It
// knows no specific command.
package clitest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Program is the main function of a program. It runs a command line, and returns the exit status.
type Program func(args []string, stdin io.Reader, stdout, stderr io.Writer) int

// Opener prepares what a command needs, such as the archive that --root names. release closes it.
type Opener func(*cobra.Command) (release func() error, err error)

// New returns a program that has the given commands. commands is called for each call of the program.
func New(open Opener, commands func() []*cobra.Command) Program {
	return func(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
		root := &cobra.Command{Use: "rdma-spec", Args: cobra.NoArgs}
		for _, group := range []string{cli.GroupNode, cli.GroupPod, cli.GroupConfiguration} {
			root.AddGroup(&cobra.Group{ID: group})
		}
		root.AddCommand(commands()...)
		release := func() error { return nil }
		if open != nil {
			root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
				release, err = open(cmd)
				return err
			}
		}
		return cli.Run(root, func() error { return release() }, args, stdin, stdout, stderr)
	}
}

// Outcome is the result of a call.
type Outcome struct {
	Status         int
	Stdout, Stderr string
}

// late matches the message that commands print only if the machine is busy.
var late = regexp.MustCompile(`(?m)^rdma-spec: no response yet to the queries for .*\n`)

// Call runs the program with a text on standard input. It removes messages that match late from standard error.
func (p Program) Call(stdin string, args ...string) Outcome {
	var stdout, stderr bytes.Buffer
	status := p(args, strings.NewReader(stdin), &stdout, &stderr)
	return Outcome{status, stdout.String(), late.ReplaceAllString(stderr.String(), "")}
}

// Words runs the program with the words of a line as arguments, followed by more arguments.
func (p Program) Words(line string, more ...string) Outcome {
	return p.Call("", append(strings.Fields(line), more...)...)
}

// Completions returns what a shell offers as completions at the end of a command line.
func (p Program) Completions(args ...string) string {
	words, _, _ := strings.Cut(p.Call("", append([]string{"__complete"}, args...)...).Stdout, "\n:")
	return strings.ReplaceAll(words, "\n", " ")
}

// Collect runs `collect` on the node below a root, and returns the path of the support bundle.
func (p Program) Collect(t testing.TB, root string, args ...string) (file string) {
	t.Helper()
	file = filepath.Join(scratch.Dir(t), "node.tar.gz")
	if got := p.Words("collect --root "+root+" --to "+file, args...); got.Status != 0 || got.Stdout != "" {
		t.Fatalf("collect: %+v", got)
	}
	return file
}

// Compare compares the results of several calls with a golden file in testdata. Each line of calls is a call or a
// comment. names maps names in capitals, which calls contain, to paths and texts. The text after <<< is the standard
// input. Each gist function shortens the standard output before the comparison.
func (p Program) Compare(t testing.TB, file string, names map[string]string, calls string,
	gist ...func(string) string) {
	t.Helper()
	var there, back []string
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(names))) { // a name comes before its prefixes
		there = append(there, name, names[name])
		back = append(back, names[name], name)
	}
	replaced := strings.NewReplacer(there...)
	named := strings.NewReplacer(back...)
	var all strings.Builder
	for line := range strings.Lines(strings.TrimSpace(calls)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			all.WriteString(line + "\n")
			continue
		}
		args, stdin, _ := strings.Cut(line, " <<< ")
		got := p.Call(replaced.Replace(stdin), strings.Fields(replaced.Replace(args))...)
		for _, gist := range gist {
			got.Stdout = gist(got.Stdout)
		}
		fmt.Fprintf(&all, "$ rdma-spec %s\n%s--- stderr, %d\n%s\n", line, named.Replace(got.Stdout), got.Status,
			named.Replace(got.Stderr))
	}
	golden.Compare(t, filepath.Join("testdata", file+".txt"), all.String())
}

// File returns the path of a temporary file with a text, such as a configuration.
func File(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, file, text, 0o644)
	return file
}
