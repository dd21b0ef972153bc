// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// unreachable gives a warning for each rule that can never match, since an earlier one matches whatever it does. It finds what can be
// told from two rules alone.
func unreachable(rules []policy.Rule) []string {
	var warnings []string
	for i, later := range rules {
		for j, earlier := range rules[:i] {
			if coversRule(earlier.Match, later.Match) {
				warnings = append(warnings, fmt.Sprintf("%s can never match: %s matches all that it does and comes first: change their order, or remove one",
					ruleName(rules, i), ruleName(rules, j)))
				break
			}
		}
	}
	return warnings
}

func ruleName(rules []policy.Rule, i int) string {
	if rules[i].Name != "" {
		return fmt.Sprintf("rules[%d] (%s)", i, rules[i].Name)
	}
	return fmt.Sprintf("rules[%d]", i)
}

// coversRule says whether an earlier rule surely matches all that a later one does.
func coversRule(earlier, later policy.Match) bool {
	for key, value := range earlier.Labels {
		if got, ok := later.Labels[key]; !ok || got != value {
			return false
		}
	}
	return coverGlobs(earlier.Namespaces, later.Namespaces) && coverGlobs(earlier.Resources, later.Resources) &&
		coverGlobs(earlier.RuntimeHandlers, later.RuntimeHandlers)
}

// coverGlobs says whether some globs surely match every name that others match. No globs match all.
func coverGlobs(wide, narrow []string) bool {
	if len(wide) == 0 {
		return true
	}
	return len(narrow) > 0 && !slices.ContainsFunc(narrow, func(n string) bool {
		return !slices.ContainsFunc(wide, func(w string) bool { return coversGlob(w, n) })
	})
}

const globCharacters = `*?[\`

// coversGlob says whether a glob surely matches every name that another does: an equal one, one that matches the other where that
// is a plain name, or prefix* where the other begins with the prefix and goes on without a slash, which * does not match.
func coversGlob(wide, narrow string) bool {
	if wide == narrow {
		return true
	}
	if !strings.ContainsAny(narrow, globCharacters) {
		matches, err := path.Match(wide, narrow)
		return err == nil && matches
	}
	prefix, open := strings.CutSuffix(wide, "*")
	rest, begins := strings.CutPrefix(narrow, prefix)
	return open && begins && !strings.ContainsAny(prefix, globCharacters) && !strings.ContainsAny(rest, `/[\`)
}
