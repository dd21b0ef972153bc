// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// row is a row of a part.Table.
type row struct {
	part  string
	again bool
	tests []string
}

// TestPartsOfTheNode checks that each test that runs on the node is in exactly one part of its package's table, and
// that the Makefile or test/pair runs each part, and no others.
func TestPartsOfTheNode(t *testing.T) {
	named := partsIn(repository.Read(t, "Makefile") + repository.Read(t, "test/pair/pair_test.go"))
	var all []string
	for _, dir := range []string{"test/e2e", "deploy/systemd"} {
		tests, rows := onNode(t, dir)
		if len(tests) == 0 || len(rows) == 0 {
			t.Fatalf("%s has %d tests on the node, and %d rows in its table", dir, len(tests), len(rows))
		}
		for _, problem := range misplaced(tests, rows) {
			t.Errorf("%s: %s", dir, problem)
		}
		for _, r := range rows {
			all = append(all, r.part)
			if !slices.Contains(named, r.part) {
				t.Errorf("%s: no target of the Makefile runs the part %s", dir, r.part)
			}
		}
	}
	for _, part := range named {
		if !slices.Contains(all, part) {
			t.Errorf("the Makefile runs the part %s, which no table has", part)
		}
	}
}

// partsIn returns the parts after -part in a text.
func partsIn(text string) (parts []string) {
	for _, found := range regexp.MustCompile(`-part"?,? "?([a-z,]+)`).FindAllStringSubmatch(text, -1) {
		parts = append(parts, strings.Split(strings.TrimSuffix(found[1], ","), ",")...)
	}
	return parts
}

// misplaced returns an error for each test that is in no part, and for each test that is in several.
func misplaced(tests []string, rows []row) (problems []string) {
	for _, test := range tests {
		var parts []string
		for _, r := range rows {
			if !r.again && slices.Contains(r.tests, test) {
				parts = append(parts, r.part)
			}
		}
		switch {
		case len(parts) == 0:
			problems = append(problems, test+" is in no part: add it to one in the table `parts`")
		case len(parts) > 1:
			problems = append(problems, test+" is in several parts: "+strings.Join(parts, ", "))
		}
	}
	return problems
}

func TestMisplaced(t *testing.T) {
	rows := []row{
		{part: "main", tests: []string{"TestA", "TestB"}},
		{part: "edges", tests: []string{"TestB"}},
		{part: "smoke", again: true, tests: []string{"TestA", "TestC"}},
	}
	got := misplaced([]string{"TestA", "TestB", "TestC"}, rows)
	if len(got) != 2 || !strings.HasPrefix(got[0], "TestB is in several") || !strings.HasPrefix(got[1], "TestC is in no") {
		t.Errorf("%q", got)
	}
}

// onNode returns the tests of a directory that have the build tag node, and the rows of the directory's part.Table.
func onNode(t *testing.T, dir string) (tests []string, rows []row) {
	t.Helper()
	files, err := filepath.Glob(repository.Path(t, dir+"/*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text := repository.Read(t, file)
		if !strings.Contains(text, "\n//go:build node\n") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range parsed.Decls {
			switch d := declared.(type) {
			case *ast.FuncDecl:
				if name := d.Name.Name; d.Recv == nil && strings.HasPrefix(name, "Test") && name != "TestMain" {
					tests = append(tests, name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && v.Names[0].Name == "parts" && len(v.Values) == 1 {
						rows = rowsOf(v.Values[0])
					}
				}
			}
		}
	}
	return tests, rows
}

// rowsOf reads a part.Table.
func rowsOf(table ast.Expr) (rows []row) {
	for _, element := range table.(*ast.CompositeLit).Elts {
		var r row
		for _, field := range element.(*ast.CompositeLit).Elts {
			pair := field.(*ast.KeyValueExpr)
			switch value := pair.Value.(type) {
			case *ast.BasicLit:
				if pair.Key.(*ast.Ident).Name == "Part" {
					r.part, _ = strconv.Unquote(value.Value) // the parser has read it
				}
			case *ast.Ident:
				r.again = r.again || pair.Key.(*ast.Ident).Name == "Again"
			case *ast.CompositeLit:
				for _, test := range value.Elts {
					r.tests = append(r.tests, test.(*ast.Ident).Name)
				}
			}
		}
		rows = append(rows, r)
	}
	return rows
}
