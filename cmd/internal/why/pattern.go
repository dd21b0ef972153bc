// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled when it is first used: most runs of the programs read no log, and
// forty expressions take two milliseconds and a megabyte.
type pattern struct{ compiled func() *regexp.Regexp }

// patterns are all patterns, for the test that compiles each.
var patterns []*pattern

// lazily returns the pattern of an expression. One that is not valid panics when it is first used.
func lazily(expression string) *pattern {
	p := &pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
	patterns = append(patterns, p)
	return p
}

// Match is regexp.Regexp's, and so are the others.
func (p *pattern) Match(b []byte) bool { return p.compiled().Match(b) }

// MatchString is regexp.Regexp's.
func (p *pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindStringSubmatch is regexp.Regexp's.
func (p *pattern) FindStringSubmatch(s string) []string { return p.compiled().FindStringSubmatch(s) }

// FindAllStringSubmatch is regexp.Regexp's.
func (p *pattern) FindAllStringSubmatch(s string, n int) [][]string {
	return p.compiled().FindAllStringSubmatch(s, n)
}

// ReplaceAllString is regexp.Regexp's.
func (p *pattern) ReplaceAllString(s, replacement string) string {
	return p.compiled().ReplaceAllString(s, replacement)
}
