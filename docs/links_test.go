// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// link is a link from one text to a file, or to a heading of a text. The file is relative to the repository's top
// folder.
type link struct{ from, file, anchor string }

// links returns the links of a text to files of the repository.
func links(file, text string) (all []link) {
	for _, found := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
		target, anchor, _ := strings.Cut(found[1], "#")
		switch {
		case strings.Contains(target, "://"):
			continue
		case target == "":
			target = file
		default:
			target = filepath.Join(filepath.Dir(file), target)
		}
		all = append(all, link{file, target, anchor})
	}
	return all
}

func TestLinksInTextsLead(t *testing.T) {
	linked := map[string][]string{} // texts by the texts that link to them
	for _, file := range texts(t) {
		for _, l := range links(file, repository.Read(t, file)) {
			linked[l.file] = append(linked[l.file], l.from)
			if _, err := os.Stat(repository.Path(t, l.file)); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if l.anchor != "" && !slices.Contains(anchors(repository.Read(t, l.file)), l.anchor) {
				t.Errorf("%s: %s has no heading for #%s", file, l.file, l.anchor)
			}
		}
	}
	for _, file := range texts(t)[1:] {
		if !slices.Contains(linked[file], "README.md") || !slices.Contains(linked["README.md"], file) {
			t.Errorf("README.md and %s do not link to each other", file)
		}
	}
}

// anchors returns the names under which GitHub links a text's headings.
func anchors(text string) []string {
	var names []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""),
		-1) {
		kept := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(kept, " ", "-"))
	}
	return names
}

// TestPagesNamedInFilesExist checks that the pages that installed files, messages and comments name are there.
func TestPagesNamedInFilesExist(t *testing.T) {
	page := regexp.MustCompile(`\bdocs/[a-z-]+\.(md|svg)\b`)
	for _, folder := range []string{"cmd", "deploy", "plugin", "spec", "test", "docs"} {
		err := filepath.WalkDir(repository.Path(t, folder), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			for _, name := range page.FindAllString(repository.Read(t, file), -1) {
				if _, err := os.Stat(repository.Path(t, name)); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
