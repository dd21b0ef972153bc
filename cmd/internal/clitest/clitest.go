// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clitest runs commands in a test's process as a shell would, and compares their output with golden files. It
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

// Program is the main function of a program: it carries out a call and returns the exit status.
type Program func(args []string, stdin io.Reader, stdout, stderr io.Writer) int

// Opener prepares what a command needs, as the archive that its --root is. release gives that back.
type Opener func(*cobra.Command) (release func() error, err error)

// New makes a program with some commands, which a function makes anew for each call.
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

// Outcome is what a call leaves behind.
type Outcome struct {
	Status         int
	Stdout, Stderr string
}

// late is what commands say on a busy machine.
var late = regexp.MustCompile(`(?m)^rdma-spec: no response yet about .*\n`)

// Call calls the program with something on standard input. What is late is left out.
func (p Program) Call(stdin string, args ...string) Outcome {
	var stdout, stderr bytes.Buffer
	status := p(args, strings.NewReader(stdin), &stdout, &stderr)
	return Outcome{status, stdout.String(), late.ReplaceAllString(stderr.String(), "")}
}

// Words calls the program with the words of a line, and with further arguments.
func (p Program) Words(line string, more ...string) Outcome {
	return p.Call("", append(strings.Fields(line), more...)...)
}

// Completions returns what a shell offers at the end of a command line.
func (p Program) Completions(args ...string) string {
	words, _, _ := strings.Cut(p.Call("", append([]string{"__complete"}, args...)...).Stdout, "\n:")
	return strings.ReplaceAll(words, "\n", " ")
}

// Collect calls collect on the node below a root and returns the archive.
func (p Program) Collect(t testing.TB, root string, args ...string) (file string) {
	t.Helper()
	file = filepath.Join(scratch.Dir(t), "node.tar.gz")
	if got := p.Words("collect --root "+root+" --to "+file, args...); got.Status != 0 || got.Stdout != "" {
		t.Fatalf("collect: %+v", got)
	}
	return file
}

// Compare compares what calls of the program leave behind with a golden file in testdata. Each line is a call, or a
// comment. Names in capitals stand for paths and texts, and what is behind <<< is the standard input. Of a long
// standard output, gist is compared.
func (p Program) Compare(t testing.TB, file string, names map[string]string, calls string,
	gist ...func(string) string) {
	t.Helper()
	var there, back []string
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(names))) { // a longer one before its beginning
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

// File returns a file with a text, as a configuration has it.
func File(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "config.yaml")
	scratch.File(t, file, text, 0o644)
	return file
}
