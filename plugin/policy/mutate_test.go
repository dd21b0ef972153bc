// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build mutation

package policy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// A guard is a condition, marked by a comment on its line or on the lines above:
//
//	if len(value) > maxAnnotation { // guard: annotation-size
//
// Out of force, it is false. Where that would not let anything through, the mark says what takes its place:
//
//	case d.annotated && d.namespaceListed(): // guard: annotation-namespace, else d.annotated
//
// On a return or an assignment such a mark replaces the first value, or the function of a lone call.
var guardMark = regexp.MustCompile(`guard: ([^.,\n]+)(?:, else (.+))?`)

// unmarked are conditions of other packages that are guards here, by their text.
var unmarked = map[string]string{
	"len(text) > maxQuantityLength":  "quantity-length",
	"hugeExponent.MatchString(text)": "huge-exponent",
	"quantity.Sign() <= 0":           "negative-size",
}

// mutated source of a file, and the places of its guards.
type mutation struct {
	packageName, text string
	guards            map[string]string
}

// edit replaces a piece of a source text.
type edit struct {
	from, to int
	text     string
}

func mutate(t *testing.T, file string) mutation {
	t.Helper()
	source, err := os.ReadFile(file)
	must.Succeed(t, err)
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, file, source, parser.ParseComments)
	must.Succeed(t, err)
	m := mutation{packageName: parsed.Name.Name, guards: map[string]string{}}
	line := func(p token.Pos) int { return positions.Position(p).Line }
	offset := func(p token.Pos) int { return positions.Position(p).Offset }
	textOf := func(n ast.Node) string { return string(source[offset(n.Pos()):offset(n.End())]) }

	marks := map[int][]string{} // by the line of the guard: its name, and what is there instead
	for _, group := range parsed.Comments {
		found := guardMark.FindStringSubmatch(group.Text())
		if found == nil {
			continue
		}
		at := line(group.Pos())
		if begin := strings.LastIndexByte(string(source[:offset(group.Pos())]), '\n') +
			1; strings.TrimSpace(string(source[begin:offset(group.Pos())])) == "" {
			at = line(group.End()) + 1
		}
		marks[at] = found[1:]
	}
	var edits []edit
	mutant := func(guard, instead string, n ast.Node) {
		replacement := fmt.Sprintf("(!mutated(%q) && (%s))", guard, textOf(n))
		if instead != "" {
			replacement = fmt.Sprintf("pick(%q, %s, %s)", guard, instead, textOf(n))
		}
		edits = append(edits, edit{offset(n.Pos()), offset(n.End()), replacement})
		m.guards[guard] = positions.Position(n.Pos()).String()
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		condition := conditionOf(n)
		if condition == nil {
			return true
		}
		if mark, ok := marks[line(condition.Pos())]; ok {
			mutant(mark[0], mark[1], condition)
			delete(marks, line(condition.Pos()))
		} else if guard, ok := unmarked[textOf(condition)]; ok {
			mutant(guard, "", condition)
		}
		return true
	})
	ast.Inspect(parsed, func(n ast.Node) bool {
		if value := valueOf(n); value != nil {
			if mark, ok := marks[line(value.Pos())]; ok && mark[1] != "" {
				mutant(mark[0], mark[1], value)
				delete(marks, line(value.Pos()))
			}
		}
		return true
	})
	for at, mark := range marks {
		if !strings.HasPrefix(file, "..") {
			t.Errorf("%s:%d: the guard %q marks no condition, return or assignment", file, at, mark[0])
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	m.text = string(source)
	for _, e := range edits {
		m.text = m.text[:e.from] + e.text + m.text[e.to:]
	}
	return m
}

// conditionOf returns the condition of an if or of a case without a tag.
func conditionOf(n ast.Node) ast.Expr {
	switch s := n.(type) {
	case *ast.IfStmt:
		return s.Cond
	case *ast.CaseClause:
		if len(s.List) > 0 {
			return s.List[0]
		}
	}
	return nil
}

// valueOf returns what a mark replaces of a return or an assignment.
func valueOf(n ast.Node) ast.Expr {
	var values []ast.Expr
	switch s := n.(type) {
	case *ast.ReturnStmt:
		values = s.Results
	case *ast.AssignStmt:
		values = s.Rhs
	}
	if len(values) == 0 {
		return nil
	}
	if call, ok := values[0].(*ast.CallExpr); ok && len(values) == 1 {
		return call.Fun
	}
	return values[0]
}
