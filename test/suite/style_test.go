// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestStatements: code contains one statement per line. None of the linters that run here checks that.
func TestStatements(t *testing.T) {
	root := repository.Path(t, ".")
	must.Succeed(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "node_modules" || name == "bin" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, problem := range crowded(set, file) {
			t.Error(strings.TrimPrefix(problem, root+"/"))
		}
		return nil
	}))
}

// crowded returns the statements of a file that do several things at once. The clauses of a for statement count as one
// thing.
func crowded(set *token.FileSet, file *ast.File) (problems []string) {
	loops := map[ast.Stmt]bool{}
	report := func(s ast.Stmt, what string) {
		problems = append(problems, fmt.Sprintf("%s: %s", set.Position(s.Pos()), what))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			loops[n.Init] = true
			loops[n.Post] = true
		case *ast.AssignStmt:
			if len(n.Rhs) > 1 && !loops[n] && !swaps(n) {
				report(n, "several values are assigned at once: assign each in a line of its own")
			}
		case *ast.IfStmt:
			if changes(n.Init) {
				report(n, "the condition begins with an effect: write that in the line before")
			}
		case *ast.SwitchStmt:
			if changes(n.Init) {
				report(n, "the switch begins with an effect: write that in the line before")
			}
		case *ast.BranchStmt:
			if n.Tok == token.FALLTHROUGH {
				report(n, "fallthrough hides what the case means: name both cases")
			}
		}
		return true
	})
	return problems
}

// swaps reports whether a value is on both sides of an assignment, so that the assignment cannot be split.
func swaps(s *ast.AssignStmt) bool {
	names := map[string]bool{}
	for _, left := range s.Lhs {
		names[fmt.Sprint(text(left))] = true
	}
	for _, right := range s.Rhs {
		if names[text(right)] {
			return true
		}
	}
	return false
}

// text returns an operand's text; "" for other expressions.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	case *ast.IndexExpr:
		return text(e.X) + "[" + text(e.Index) + "]"
	}
	return ""
}

// changes reports whether a statement that precedes a condition changes something other than an error.
func changes(init ast.Stmt) bool {
	switch s := init.(type) {
	case *ast.AssignStmt:
		last, isName := s.Lhs[len(s.Lhs)-1].(*ast.Ident)
		return s.Tok != token.DEFINE && (!isName || last.Name != "err")
	case *ast.IncDecStmt, *ast.ExprStmt:
		return true
	}
	return false
}

func TestCrowded(t *testing.T) {
	const before = "package p\nfunc f(a, b int, err error) {\n"
	for source, want := range map[string]bool{
		"a, b = 1, 2": true, "x, y := a, b\n_, _ = x, y": true, "a, b = b, a": false, "a, err = g()": false,
		"for i, j := 0, 1; i < j; i, j = i+1, j-1 {}": false, "if a++; a > b {}": true, "if f(1, 2, nil); a > b {}": true,
		"if a = 1; a > b {}": true, "if a, err = g(); err != nil {}": false, "if x := a; x > b {}": false,
		"switch a = 1; {}": true, "switch x := a; {\ncase x > 1:\nfallthrough\ndefault:\n}": true,
	} {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "p.go", before+source+"\n}", 0)
		must.Succeed(t, err)
		if got := crowded(set, file); (len(got) > 0) != want {
			t.Errorf("%s: %q, want problems: %t", source, got, want)
		}
	}
}
