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

// special is what a glob has beside the characters of names.
const special = `*?^\[\]\\`

// Globs of names that Kubernetes allows, and of the kernel's.
var (
	anyGlob      = regexp.MustCompile(`^[^/]*$`)
	labelGlob    = regexp.MustCompile(`^[-a-z0-9` + special + `]*$`)
	resourceGlob = regexp.MustCompile(`^[-.a-z0-9` + special + `]*/[-.\w` + special + `]*$`)
)

// checkNameGlobs refuses globs of the kernel's names that match nothing, or that match other names than they appear to.
func checkNameGlobs(globs []string) error {
	return checkGlobs(globs, anyGlob, "a name cannot contain /: give only the name, without the / and the rest")
}

// checkNamespaceGlobs does the same for globs of namespaces.
func checkNamespaceGlobs(globs []string) error {
	return checkGlobs(globs, labelGlob, "such names contain only a-z, 0-9, and -: write a list, such as [ml-a, team-*]")
}

// CheckResourceGlobs refuses globs that match no resource: those have a domain, and a star does not match the / after
// it.
func CheckResourceGlobs(globs []string) error {
	return checkGlobs(globs, resourceGlob, "resources are called DOMAIN/NAME, DOMAIN is lowercase, and * does not "+
		"match the /: write rdma/* or */*, for example")
}

// checkHandlerGlobs does the same for globs of runtime handlers, of which "" stands for pods without a RuntimeClass.
func checkHandlerGlobs(globs []string) error {
	return checkNamespaceGlobs(slices.DeleteFunc(slices.Clone(globs), func(glob string) bool { return glob == "" }))
}

// checkGlobs checks globs of names; why says why one of another form matches nothing.
func checkGlobs(globs []string, form *regexp.Regexp, why string) error {
	for _, g := range globs {
		_, err := path.Match(g, "")
		switch {
		case err != nil || g == "" || strings.ContainsFunc(g, unicode.IsSpace) || strings.ContainsFunc(g, unicode.IsControl):
			return fmt.Errorf("%q is not a glob: write a name in which * matches any characters except /, such as "+
				"ml-* or rdma/*",
				g)
		case strings.Contains(g, "[!"):
			return fmt.Errorf("%q does not exclude characters: write [^...] to exclude them", g)
		case !form.MatchString(g): // guard: glob-form
			return fmt.Errorf("%q matches nothing: %s", g, why)
		}
	}
	return nil
}

// matchesAny reports whether a name matches one of the globs. Globs have been checked: a bad one matches nothing.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, name)
		return err == nil && ok
	})
}

// coverGlobs reports whether some globs surely match every name that others match. No globs match all.
func coverGlobs(wide, narrow []string) bool {
	return len(wide) == 0 || len(narrow) > 0 && !slices.ContainsFunc(narrow, func(n string) bool {
		return !slices.ContainsFunc(wide, func(w string) bool { return coversGlob(w, n) })
	})
}

// coversGlob compares two globs: equal ones, any and a plain name, and two that have no other special characters than *
// and, in the narrow one, ?. For those the narrow one's own text is enough: only a * of the wide one matches a * or a ?
// in it.
func coversGlob(wide, narrow string) bool {
	plain := !strings.ContainsAny(narrow, `*?[\`)
	if plain || !strings.ContainsAny(wide, `?[\`) && !strings.ContainsAny(narrow, `[\`) {
		matches, err := path.Match(wide, narrow)
		return err == nil && matches
	}
	return wide == narrow
}
