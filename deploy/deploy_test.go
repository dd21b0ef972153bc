// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy_test checks what administrators install, the files in deploy, and the documentation. It has no code of its own; the
// programs that it runs are built from the tree.
package deploy_test

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

// root is the repository's top folder, seen from this package.
const root = ".."

// read returns a file of the deploy folder.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// programs are the project's two programs, built from the tree.
type programs struct{ folder string }

var built struct {
	once   sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder) // in the temporary folder: nothing is lost
	}
	os.Exit(code)
}

func newPrograms(t *testing.T) programs {
	t.Helper()
	built.once.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "deploy-test-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", built.folder, "./cmd/nri-rdma", "./cmd/rdma-spec")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return programs{built.folder}
}

// check reports whether a command line is about one of the programs, and what is wrong with it: a subcommand or a flag that the
// program's help does not list. It looks at the words behind the program's name up to a pipe or a redirection.
func (p programs) check(line string) (ours bool, problem string) {
	words := strings.Fields(line)
	at := slices.IndexFunc(words, func(w string) bool { return filepath.Base(w) == "rdma-spec" || filepath.Base(w) == "nri-rdma" })
	if at < 0 || at > 0 && words[at-1] != "--" && !precedes(words[:at]) {
		return false, ""
	}
	name, words := filepath.Base(words[at]), words[at+1:]
	if end := slices.IndexFunc(words, func(w string) bool { return strings.ContainsAny(w[:1], "|><&;#") }); end >= 0 {
		words = words[:end]
	}
	call := []string{}
	for name == "rdma-spec" && len(words) > 0 && p.isSubcommand(append(slices.Clone(call), words[0])) {
		call, words = append(call, words[0]), words[1:]
	}
	if name == "rdma-spec" && len(call) == 0 && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return true, fmt.Sprintf("%q: rdma-spec has no command %q", line, words[0])
	}
	help, err := p.help(name, call)
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

// precedes reports whether words before a program's name leave it the program that is run: sudo, variables, the command's exec form.
func precedes(words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return w != "sudo" && !strings.Contains(w, "=") })
}

func (p programs) isSubcommand(words []string) bool {
	name := words[len(words)-1]
	if strings.HasPrefix(name, "-") {
		return false
	}
	help, err := p.help("rdma-spec", words[:len(words)-1])
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

func (p programs) help(name string, call []string) (string, error) {
	out, err := exec.Command(filepath.Join(p.folder, name), append(slices.Clone(call), "--help")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s --help: %w\n%s", name, strings.Join(call, " "), err, out)
	}
	return string(out), nil
}

// TestCheckFindsMistakes shows that check can fail.
func TestCheckFindsMistakes(t *testing.T) {
	p := newPrograms(t)
	for _, test := range []struct {
		line    string
		ours    bool
		problem string
	}{
		{line: "make demo"},
		{line: "cp bin/rdma-spec /usr/local/bin"},
		{line: "rdma-spec generate --memlock 64Gi > /etc/x.json", ours: true},
		{line: "sudo /usr/local/bin/nri-rdma --index 90", ours: true},
		{line: "rdma-spec version # which one", ours: true},
		{line: "kubectl exec my-pod -- /tmp/rdma-spec verify --lock 1Gi", ours: true},
		{line: "kubectl exec my-pod -- /tmp/rdma-spec verify --look 1Gi", ours: true, problem: "rdma-spec verify has no flag --look"},
		{line: "rdma-spec frobnicate", ours: true, problem: `rdma-spec has no command "frobnicate"`},
		{line: "rdma-spec generate --memlok 64Gi", ours: true, problem: "rdma-spec generate has no flag --memlok"},
		{line: "nri-rdma --index=90 --sokcet=x", ours: true, problem: "nri-rdma  has no flag --sokcet"},
	} {
		ours, problem := p.check(test.line)
		if ours != test.ours || (problem == "") != (test.problem == "") || !strings.HasSuffix(problem, test.problem) {
			t.Errorf("check(%q) = %v, %q; want %v, %q", test.line, ours, problem, test.ours, test.problem)
		}
	}
}
