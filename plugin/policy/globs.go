// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// special are the characters that a glob can contain in addition to the characters of names.
const special = `*?^\[\]\\`

// The following expressions match globs that can match names from Kubernetes or the kernel.
var (
	anyGlob      = regexp.MustCompile(`^[^/]*$`)
	labelGlob    = regexp.MustCompile(`^[-a-z0-9` + special + `]*$`)
	resourceGlob = regexp.MustCompile(`^[-.a-z0-9` + special + `]*/[-.\w` + special + `]*$`)
)

// checkNameGlobs rejects globs for kernel names that match nothing, or that match other names than they appear to
// match.
func checkNameGlobs(globs []string) error {
	return checkGlobs(globs, anyGlob, "a name cannot contain \"/\": write only the name")
}

// checkNamespaceGlobs rejects globs for namespaces that match nothing, or that match other names than they appear to
// match.
func checkNamespaceGlobs(globs []string) error {
	return checkGlobs(globs, labelGlob, "a name can contain only a-z, 0-9, and hyphens: to match several names, write a "+
		"list such as [ml-a, team-*]")
}

// CheckResourceGlobs rejects globs that cannot match a resource. The name of a resource starts with a domain and a
// slash, and a star does not match a slash.
func CheckResourceGlobs(globs []string) error {
	return checkGlobs(globs, resourceGlob, "a resource name has the form DOMAIN/NAME, where DOMAIN is lowercase, "+
		"and * does not match the slash: write a glob such as rdma/* or */*")
}

// checkHandlerGlobs rejects globs for runtime handlers that match nothing, or that match other names than they appear
// to match. The entry "" stands for pods without a RuntimeClass.
func checkHandlerGlobs(globs []string) error {
	return checkNamespaceGlobs(slices.DeleteFunc(slices.Clone(globs), func(glob string) bool { return glob == "" }))
}

// checkGlobs checks that globs are valid and can match names of the given form. The argument why is the reason why a
// glob of another form matches nothing.
func checkGlobs(globs []string, form *regexp.Regexp, why string) error {
	for _, g := range globs {
		_, err := path.Match(g, "")
		switch {
		case err != nil || g == "" || strings.ContainsFunc(g, unicode.IsSpace) || strings.ContainsFunc(g, unicode.IsControl):
			return fmt.Errorf("%q is not a glob: write a name in which * matches any characters except /, such as "+
				"ml-* or rdma/*", g)
		case strings.Contains(g, "[!"):
			return fmt.Errorf("%q does not exclude characters: to exclude them, write [^...]", g)
		case !form.MatchString(g): // guard: glob-form
			return fmt.Errorf("%q matches nothing, because %s", g, why)
		}
	}
	return nil
}

// matchesAny reports whether a name matches one of the globs. An invalid glob matches nothing, but New rejects a
// configuration with invalid globs.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, name)
		return err == nil && ok
	})
}

// coverGlobs reports whether the wide globs certainly match every name that the narrow globs match. An empty list
// matches all names.
func coverGlobs(wide, narrow []string) bool {
	return len(wide) == 0 || len(narrow) > 0 && !slices.ContainsFunc(narrow, func(n string) bool {
		return !slices.ContainsFunc(wide, func(w string) bool { return coversGlob(w, n) })
	})
}

// coversGlob reports whether the wide glob certainly matches every name that the narrow glob matches. coversGlob
// recognizes three cases: equal globs, a narrow glob without special characters, and globs whose only special
// characters are * and, in the narrow glob, ?. In the third case, coversGlob matches the wide glob against the text of
// the narrow glob. Only a * in the wide glob matches a * or a ? in this text.
func coversGlob(wide, narrow string) bool {
	plain := !strings.ContainsAny(narrow, `*?[\`)
	if plain || !strings.ContainsAny(wide, `?[\`) && !strings.ContainsAny(narrow, `[\`) {
		matches, err := path.Match(wide, narrow)
		return err == nil && matches
	}
	return wide == narrow
}
