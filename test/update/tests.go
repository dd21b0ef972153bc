// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// goldenTests returns the tests of the package that use a golden file, either directly or through functions or
// variables of the package's tests and helpers.
func (p tested) goldenTests() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(p.dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, helper := range p.helpers {
		sources, err := filepath.Glob(filepath.Join(helper, "*.go"))
		if err != nil {
			return nil, err
		}
		files = append(files, slices.DeleteFunc(sources, func(file string) bool { return strings.HasSuffix(file, "_test.go") })...)
	}
	uses := map[string][]string{} // the names that each function and each variable's value use
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declared := range parsed.Decls {
			addNames(uses, declared)
		}
	}
	reaching := reach(uses, path.Base(golden))
	return slices.DeleteFunc(reaching, func(name string) bool { return !strings.HasPrefix(name, "Test") || name == "TestMain" }), nil
}

// addNames adds the names that a declaration uses.
func addNames(uses map[string][]string, declared ast.Decl) {
	switch declared := declared.(type) {
	case *ast.FuncDecl:
		uses[declared.Name.Name] = append(uses[declared.Name.Name], namesIn(declared)...)
	case *ast.GenDecl:
		for _, spec := range declared.Specs {
			if value, ok := spec.(*ast.ValueSpec); ok {
				for _, name := range value.Names {
					uses[name.Name] = append(uses[name.Name], namesIn(value)...)
				}
			}
		}
	}
}

// reach returns the names that use a name, directly or indirectly.
func reach(uses map[string][]string, name string) []string {
	reaching := []string{name}
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
	return reaching
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
