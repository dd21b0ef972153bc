// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
)

// checkNameGlobs refuses globs of names that match nothing, or else than they seem to: a deny rule that never matches helps nobody.
func checkNameGlobs(globs []string) error {
	for _, g := range globs {
		if err := checkGlob(g); err != nil {
			return err
		}
		if strings.Contains(g, "/") {
			return fmt.Errorf("%q matches nothing, since no name has a / in it: remove the / and what is before or after it", g)
		}
	}
	return nil
}

// checkResourceGlobs does so for globs of resources, which have a domain. Stars do not stand for the / after it.
func checkResourceGlobs(globs []string) error {
	for _, g := range globs {
		if err := checkGlob(g); err != nil {
			return err
		}
		if strings.Count(g, "/") != 1 {
			return fmt.Errorf("%q matches nothing, since resources are called DOMAIN/NAME and * does not stand for the /: write it as in rdma/* or */*", g)
		}
	}
	return nil
}

func checkGlob(g string) error {
	_, err := path.Match(g, "")
	switch {
	case err != nil || g == "" || strings.ContainsFunc(g, unicode.IsSpace) || strings.ContainsFunc(g, unicode.IsControl):
		return fmt.Errorf("%q is no glob: write a name in which * stands for any characters but /, as in ml-* or rdma/*", g)
	case strings.Contains(g, "[!"):
		return fmt.Errorf("%q is no glob for all but those characters: write [^...] for that", g)
	}
	return nil
}

// matchesAny says whether a name matches one of the globs. Globs have been checked: a bad one matches nothing.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, name)
		return err == nil && ok
	})
}

// matchesAnyOrAll is matchesAny, but no globs match all.
func matchesAnyOrAll(globs []string, name string) bool {
	return len(globs) == 0 || matchesAny(globs, name)
}
