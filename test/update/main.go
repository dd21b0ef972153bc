// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command update writes the golden files of a change anew: it runs the tests that have golden files, with -update, of
// each package that contains a changed file, or imports a package that does.
//
//	update [-base COMMIT]
//
// Changed is what git finds to differ from COMMIT, which is HEAD by default. Whoever calls it reads the difference of
// the golden files: a test that is run so accepts whatever its program says.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	project = "github.com/rdma-spec/rdma-spec"
	golden  = project + "/test/testing/golden"
)

// modules are the directories of the modules whose tests have golden files.
var modules = []string{".", "deploy/release"}

// tested is a package whose tests have golden files.
type tested struct {
	module  string   // the directory of its module
	dir     string   // its own
	uses    []string // the directories of the project's packages that it is built from, its own and its tests' among them
	helpers []string // those of uses that import golden, or one that does
}

func main() {
	base := flag.String("base", "HEAD", "what has changed since this commit")
	flag.Parse()
	if err := update(*base); err != nil {
		fmt.Fprintln(os.Stderr, "update:", err)
		os.Exit(1)
	}
}

// mostRounds is how often a golden file may change another one's: the schema of the policy, the chart's.
const mostRounds = 3

func update(base string) error {
	before, err := changedSince(base)
	if err != nil {
		return err
	}
	changed := slices.Sorted(maps.Keys(before))
	var failed error
	for round := range mostRounds {
		if failed, err = runTests(changed, round > 0); err != nil {
			return err
		}
		after, err := changedSince(base)
		if err != nil {
			return err
		}
		changed = written(before, after)
		if len(changed) == 0 {
			break
		}
		before = after
	}
	return failed
}

// runTests runs the tests that a change of files, or of generated ones, may give other golden files. Those that fail are
// the first error.
func runTests(changed []string, generated bool) (failed, err error) {
	for _, module := range modules {
		packages, err := withGoldenFiles(module)
		if err != nil {
			return nil, err
		}
		var dirs, tests []string
		for _, p := range packages {
			if !p.affected(changed, generated) {
				continue
			}
			names, err := p.goldenTests()
			if err != nil {
				return nil, err
			}
			if len(names) == 0 {
				continue // it calls other functions of a helper
			}
			dirs = append(dirs, below(module, p.dir))
			tests = append(tests, names...)
		}
		if len(dirs) == 0 {
			continue
		}
		args := append([]string{"test", "-vet=off", "-run", "^(" + strings.Join(tests, "|") + ")$"}, dirs...)
		test := exec.Command("go", append(args, "-update")...)
		test.Dir = module
		test.Stdout = os.Stdout
		test.Stderr = os.Stderr
		if err := test.Run(); err != nil {
			failed = fmt.Errorf("not all tests passed, even with new golden files: %w", err)
		}
	}
	return failed, nil
}

// changedSince returns the files that differ from a commit, and those that git does not know yet, with what they
// contain.
func changedSince(base string) (map[string]string, error) {
	changed, err := output(".", "git", "diff", "--name-only", "--relative", base)
	if err != nil {
		return nil, err
	}
	others, err := output(".", "git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, file := range strings.Fields(changed + others) {
		text, _ := os.ReadFile(file) // one that was removed has changed as well
		files[file] = string(text)
	}
	return files, nil
}

// written returns the files that the tests have written, and that tests of other packages may read.
func written(before, after map[string]string) (files []string) {
	for _, file := range slices.Sorted(maps.Keys(after)) {
		if text, known := before[file]; (!known || text != after[file]) && !strings.Contains(file, "/testdata/") {
			files = append(files, file)
		}
	}
	return files
}

// withGoldenFiles returns the packages of a module whose tests can have golden files: golden is in the tests' program,
// whichever package imports it.
func withGoldenFiles(module string) ([]tested, error) {
	built, err := output(module, "go", "list", "-test", "-deps", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	packages := testedOf(module, built)
	if len(packages) == 0 {
		return nil, fmt.Errorf("%s: no test has golden files", module)
	}
	return packages, nil
}

// testedOf reads lines of a package and of what it is built from. The program of the package's tests ends in .test. A
// package that is built anew for such a program has the program's name behind its own, in brackets.
func testedOf(module, lines string) (packages []tested) {
	var helpers []string
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		dir, ours := strings.CutPrefix(words[0], project+"/")
		if !ours || !slices.Contains(words[1:], golden) {
			continue
		}
		if name, isTest := strings.CutSuffix(dir, ".test"); isTest {
			packages = append(packages, tested{module: module, dir: name, uses: oursOf(words[1:])})
		} else if !strings.HasPrefix(words[1], "[") {
			helpers = append(helpers, dir)
		}
	}
	for i := range packages {
		p := &packages[i]
		for _, dir := range p.uses {
			if slices.Contains(helpers, dir) {
				p.helpers = append(p.helpers, dir)
			}
		}
	}
	return packages
}

// oursOf returns the directories of the project's packages.
func oursOf(packages []string) (dirs []string) {
	for _, name := range packages {
		if dir, ours := strings.CutPrefix(name, project+"/"); ours {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// affected reports whether changes of files may change the package's golden files. A file belongs to the nearest
// package above it. One in no package, such as an example, may be read by every test, or, if it is generated, by those
// that name it; one in the top directory by none.
func (p tested) affected(changed []string, generated bool) bool {
	return slices.ContainsFunc(changed, func(file string) bool {
		if !strings.Contains(file, "/") || strings.HasPrefix(file, ".") {
			return false
		}
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			return p.dir == above(file, true) // no other package sees them
		}
		dir := above(file, false)
		if dir == "." {
			return !generated || p.names(path.Base(file))
		}
		return slices.Contains(p.uses, dir)
	})
}

// names reports whether the package or its tests have a file's name.
func (p tested) names(file string) bool {
	sources, err := filepath.Glob(filepath.Join(p.dir, "*.go"))
	return err != nil || slices.ContainsFunc(sources, func(source string) bool {
		text, err := os.ReadFile(source)
		return err != nil || bytes.Contains(text, []byte(file))
	})
}

// above returns the nearest directory above a file that has Go files: with tests, those of a test count.
func above(file string, tests bool) string {
	dir := path.Dir(file)
	for ; dir != "."; dir = path.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			return path.Ext(e.Name()) == ".go" && (tests || !strings.HasSuffix(e.Name(), "_test.go"))
		}) {
			break
		}
	}
	return dir
}

// below returns the directory as go has it in a module.
func below(module, dir string) string {
	return "./" + strings.TrimPrefix(dir, module+"/")
}

func output(dir, name string, args ...string) (string, error) {
	var failed bytes.Buffer
	command := exec.Command(name, args...)
	command.Dir = dir
	command.Stderr = &failed
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command.Args[:2], " "), err, failed.String())
	}
	return string(out), nil
}
