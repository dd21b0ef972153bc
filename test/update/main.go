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
	"go/ast"
	"go/parser"
	"go/token"
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
	module string   // the directory of its module
	dir    string   // its own
	uses   []string // the directories of the project's packages that it is built from, its own and its tests' among them
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
			names, err := goldenTests(p.dir)
			if err != nil {
				return nil, err
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

// withGoldenFiles returns the packages of a module whose tests have golden files.
func withGoldenFiles(module string) ([]tested, error) {
	imports, err := output(module, "go", "list", "-f", `{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(imports) {
		if words := strings.Fields(line); slices.Contains(words[1:], golden) {
			names = append(names, words[0])
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no test has golden files", module)
	}
	built, err := output(module, "go", append([]string{"list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`}, names...)...)
	if err != nil {
		return nil, err
	}
	return testedOf(module, built), nil
}

// testedOf reads lines of a package and of what it is built from. The program of the package's tests ends in .test.
func testedOf(module, lines string) (packages []tested) {
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		name, isTest := strings.CutSuffix(words[0], ".test")
		if !isTest {
			continue
		}
		p := tested{module: module, dir: strings.TrimPrefix(name, project+"/")}
		for _, word := range words[1:] {
			if dir, ours := strings.CutPrefix(word, project+"/"); ours {
				p.uses = append(p.uses, dir)
			}
		}
		packages = append(packages, p)
	}
	return packages
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

// goldenTests returns the tests of a directory that reach a golden file, through functions of the directory or by
// themselves.
func goldenTests(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	uses := map[string][]string{} // the names in each function
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declared := range parsed.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok && f.Body != nil {
				uses[f.Name.Name] = append(uses[f.Name.Name], namesIn(f)...)
			}
		}
	}
	reaching := []string{path.Base(golden)}
	for before := 0; before < len(reaching); {
		before = len(reaching)
		for name, used := range uses {
			reaches := func(other string) bool { return slices.Contains(reaching, other) }
			if !reaches(name) && slices.ContainsFunc(used, reaches) {
				reaching = append(reaching, name)
			}
		}
	}
	slices.Sort(reaching)
	return slices.DeleteFunc(reaching, func(name string) bool { return !strings.HasPrefix(name, "Test") || name == "TestMain" }), nil
}

func namesIn(node ast.Node) (names []string) {
	ast.Inspect(node, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			names = append(names, name.Name)
		}
		return true
	})
	return names
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
