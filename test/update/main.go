// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command update regenerates the golden files that a change affects. In each package that contains a changed file or
// imports such a package, it runs the tests that have golden files with -update.
//
//	update [-base COMMIT]
//
// A file has changed if git finds a difference from COMMIT, which is HEAD by default. Read the diff of the golden files
// afterwards, because a test with -update accepts whatever its program prints.
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
	module  string   // its module's directory
	dir     string   // the package's own directory
	uses    []string // the directories of the project's packages that the package and its tests are built from, including its own
	helpers []string // the packages in uses that import golden, directly or indirectly
}

func main() {
	base := flag.String("base", "HEAD", "what has changed since this commit")
	flag.Parse()
	if err := update(*base); err != nil {
		fmt.Fprintln(os.Stderr, "update:", err)
		os.Exit(1)
	}
}

// mostRounds is how many rounds are run at most. One golden file can affect another one: the schema of the policy
// affects the chart's.
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

// runTests runs the tests whose golden files may depend on changed files; generated says that the changes come from
// golden files. failed is the error of tests that failed.
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
				continue // it calls only other functions of a helper
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

// changedSince returns the files that differ from a commit, and the files that git does not track yet, with their
// contents.
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
		text, _ := os.ReadFile(file) // a removed file has changed as well
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

// withGoldenFiles returns the packages of a module whose tests can have golden files, because package golden is part of
// the tests' program.
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

// testedOf parses lines that list a package and the packages that it is built from. The name of a package's test
// program ends in .test. If a package is compiled separately for a test program, the program's name follows the
// package's name in brackets.
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

// affected reports whether changed files may affect the package's golden files. A file belongs to the package in the
// nearest directory above it. A file without a package, such as an example, may be read by every test or, if it is
// generated, by the tests that name it. A file in the top directory affects no package.
func (p tested) affected(changed []string, generated bool) bool {
	return slices.ContainsFunc(changed, func(file string) bool {
		if !strings.Contains(file, "/") || strings.HasPrefix(file, ".") {
			return false
		}
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			return p.dir == above(file, true) // no other package uses it
		}
		dir := above(file, false)
		if dir == "." {
			return !generated || p.names(path.Base(file))
		}
		return slices.Contains(p.uses, dir)
	})
}

// names reports whether the package or its tests contain a file's name.
func (p tested) names(file string) bool {
	sources, err := filepath.Glob(filepath.Join(p.dir, "*.go"))
	return err != nil || slices.ContainsFunc(sources, func(source string) bool {
		text, err := os.ReadFile(source)
		return err != nil || bytes.Contains(text, []byte(file))
	})
}

// above returns the nearest directory above a file that contains Go files. If tests is false, test files do not count.
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

// below returns the directory relative to a module, in the format of the go command.
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
