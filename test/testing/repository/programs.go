// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Programs are the project's two programs, built from this repository.
type Programs struct {
	// Dir is the directory that contains the programs.
	Dir string
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// Main runs the tests of a package that calls Build, removes the programs, and ends the process.
func Main(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // if this fails, only a temporary directory is left
	}
	os.Exit(code)
}

// Build builds the programs at its first call in a process, and returns them.
func Build(t testing.TB) Programs {
	t.Helper()
	built.once.Do(func() {
		built.dir, built.err = os.MkdirTemp("", "rdma-spec-")
		if built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.dir, "./cmd/nri-rdma", "./cmd/rdma-spec")
		cmd.Dir = Path(t, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return Programs{built.dir}
}

// Check reports whether a command line runs one of the programs. If so, problem names a subcommand or flag that the
// program's help does not list; "" if it lists all. Check reads the words after the program's name, up to a pipe or a
// redirection.
func (p Programs) Check(line string) (ours bool, problem string) {
	words := strings.Fields(line)
	at := slices.IndexFunc(words,
		func(w string) bool { return filepath.Base(w) == "rdma-spec" || filepath.Base(w) == "nri-rdma" })
	if at < 0 || at > 0 && words[at-1] != "--" && !precedes(words[:at]) {
		return false, ""
	}
	name := filepath.Base(words[at])
	words = words[at+1:]
	if end := slices.IndexFunc(words, func(w string) bool { return strings.ContainsAny(w[:1], "|><&;#") }); end >= 0 {
		words = words[:end]
	}
	call := []string{}
	for name == "rdma-spec" && len(words) > 0 && p.isSubcommand(append(slices.Clone(call), words[0])) {
		call = append(call, words[0])
		words = words[1:]
	}
	if name == "rdma-spec" && len(call) == 0 && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return true, fmt.Sprintf("%q: rdma-spec has no command %q", line, words[0])
	}
	help, err := p.Help(name, call)
	if err != nil {
		return true, fmt.Sprintf("%q: %v", line, err)
	}
	known := strings.FieldsFunc(help, func(r rune) bool { return strings.ContainsRune(" \t\n,=[]()'\"`.:;", r) })
	for _, w := range words {
		flag, _, _ := strings.Cut(strings.Trim(w, "`'\""), "=")
		if strings.HasPrefix(flag, "-") && flag != "-" && flag != "--help" && !slices.Contains(known, flag) {
			return true, fmt.Sprintf("%q: %s %s has no flag %s", line, name, strings.Join(call, " "), flag)
		}
	}
	return true, ""
}

// precedes reports whether a command line that begins with these words runs the program whose name follows, as after
// sudo, variable assignments, or exec.
func precedes(words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return w != "sudo" && !strings.Contains(w, "=") })
}

func (p Programs) isSubcommand(words []string) bool {
	name := words[len(words)-1]
	if strings.HasPrefix(name, "-") {
		return false
	}
	help, err := p.Help("rdma-spec", words[:len(words)-1])
	if err != nil {
		return false
	}
	_, commands, _ := strings.Cut(help, "\nExamples:\n")
	for _, l := range strings.Split(commands, "\n") {
		if fields := strings.Fields(l); strings.HasPrefix(l, "  ") && len(fields) > 0 && fields[0] == name {
			return true
		}
	}
	return false
}

// Help returns the help text of a program, or of one of its commands.
func (p Programs) Help(name string, call []string) (string, error) {
	out, err := exec.Command(filepath.Join(p.Dir, name), append(slices.Clone(call), "--help")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s --help: %w\n%s", name, strings.Join(call, " "), err, out)
	}
	return string(out), nil
}
