// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// mutant is a small change to a package's source.
type mutant struct {
	file, function string
	was, is        string // a piece of source, and its replacement
	number         int    // from 1, in the list of chosen mutants
	from, to       int    // the piece's position in bytes
	order          int    // order of two mutants of the same piece: a condition encloses its operator
	// switched returns source that behaves like the mutant if the condition is true, and like the original piece
	// otherwise. inner returns the source of nodes inside the piece.
	switched func(condition string, inner func(ast.Node) string) string
}

// name identifies the mutant, even if other parts of the file change.
func (m mutant) name() string {
	return m.file + "\t" + m.function + "\t" + m.was + "\t" + m.is
}

// condition is true in the test program that runs as this mutant.
func (m mutant) condition() string { return fmt.Sprintf("chosenMutant(\"%d\")", m.number) }

// opposites maps operators to their replacements. A comparison is shifted by one, which tests of limits notice.
var opposites = map[token.Token]token.Token{
	token.LAND: token.LOR, token.LOR: token.LAND, token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

// mutants returns all mutants of a file that compile, unless they misuse types derived from bool: another operator, a
// negated condition, the opposite truth value, or an omitted statement.
func mutants(file string, source []byte) ([]mutant, error) {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return positions.Position(p).Offset }
	text := func(n ast.Node) string { return string(source[offset(n.Pos()):offset(n.End())]) }
	var all []mutant
	function := ""
	add := func(n ast.Node, is string, switched func(condition string, inner func(ast.Node) string) string) {
		all = append(all, mutant{file: file, function: function, was: strings.Join(strings.Fields(text(n)), " "), is: is,
			from: offset(n.Pos()), to: offset(n.End()), order: len(all), switched: switched})
	}
	truth := func(n ast.Expr) {
		if name, ok := n.(*ast.Ident); ok && (name.Name == "true" || name.Name == "false") {
			add(n, "its opposite", func(condition string, _ func(ast.Node) string) string {
				return map[string]string{"true": "!", "false": ""}[name.Name] + condition
			})
		}
	}
	condition := func(n ast.Expr) {
		if n != nil {
			add(n, "its opposite", func(condition string, inner func(ast.Node) string) string {
				return fmt.Sprintf("(%s) != %s", inner(n), condition)
			})
		}
	}
	statements := func(list []ast.Stmt) {
		for _, s := range list {
			assignment, assigns := s.(*ast.AssignStmt)
			_, calls := s.(*ast.ExprStmt)
			_, counts := s.(*ast.IncDecStmt)
			if calls || counts || assigns && assignment.Tok != token.DEFINE {
				add(s, "nothing", func(condition string, inner func(ast.Node) string) string {
					return fmt.Sprintf("if !%s { %s }", condition, inner(s))
				})
			}
		}
	}
	for _, declaration := range parsed.Decls {
		f, isFunction := declaration.(*ast.FuncDecl)
		if !isFunction || f.Body == nil {
			continue // package variables are initialized before a mutant is chosen
		}
		function = f.Name.Name
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if opposite, ok := opposites[n.Op]; ok {
					add(n, opposite.String(), func(condition string, inner func(ast.Node) string) string {
						x := inner(n.X)
						y := inner(n.Y)
						return fmt.Sprintf("(%s && (%s %s %s) || !%s && (%s %s %s))", condition, x, opposite, y, condition, x, n.Op, y)
					})
				}
			case *ast.IfStmt:
				condition(n.Cond)
			case *ast.ForStmt:
				condition(n.Cond)
			case *ast.ReturnStmt:
				for _, result := range n.Results {
					truth(result)
				}
			case *ast.AssignStmt:
				for _, value := range n.Rhs {
					truth(value)
				}
			case *ast.BlockStmt:
				statements(n.List)
			case *ast.CaseClause:
				statements(n.Body)
			case *ast.CommClause:
				statements(n.Body)
			}
			return true
		})
	}
	return all, nil
}

// withMutants returns the source with a switch for each of its mutants. The function chosenMutant reports which one is
// on.
func withMutants(source []byte, of []mutant) string {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b mutant) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to), a.order-b.order)
	})
	return render(source, 0, len(source), of)
}

// render returns a piece of the source with the mutants inside it.
func render(source []byte, from, to int, of []mutant) string {
	var out strings.Builder
	for len(of) > 0 {
		m := of[0]
		of = of[1:]
		if m.from < from || m.to > to {
			continue
		}
		out.Write(source[from:m.from])
		inside := of
		// Positions in the file begin at 1.
		out.WriteString(m.switched(m.condition(), func(n ast.Node) string {
			return render(source, int(n.Pos())-1, int(n.End())-1, inside)
		}))
		from = m.to
	}
	out.Write(source[from:to])
	return out.String()
}
