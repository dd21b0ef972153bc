// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled when it is first used, because most runs of the programs read no
// log. Compiling forty expressions takes two milliseconds and a megabyte.
type pattern struct{ compiled func() *regexp.Regexp }

// patterns contains all patterns, for the test that compiles them.
var patterns []*pattern

// lazily returns a pattern for an expression. An invalid expression panics when the pattern is first used.
func lazily(expression string) *pattern {
	p := &pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
	patterns = append(patterns, p)
	return p
}

// Match is like [regexp.Regexp.Match].
func (p *pattern) Match(b []byte) bool { return p.compiled().Match(b) }

// MatchString is like [regexp.Regexp.MatchString].
func (p *pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindStringSubmatch is like [regexp.Regexp.FindStringSubmatch].
func (p *pattern) FindStringSubmatch(s string) []string { return p.compiled().FindStringSubmatch(s) }

// FindAllStringSubmatch is like [regexp.Regexp.FindAllStringSubmatch].
func (p *pattern) FindAllStringSubmatch(s string, n int) [][]string {
	return p.compiled().FindAllStringSubmatch(s, n)
}

// ReplaceAllString is like [regexp.Regexp.ReplaceAllString].
func (p *pattern) ReplaceAllString(s, replacement string) string {
	return p.compiled().ReplaceAllString(s, replacement)
}
