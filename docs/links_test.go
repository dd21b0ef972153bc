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

	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// link is a link from one text to a file, or to a heading of a text. The file is relative to the repository's top
// directory.
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

// wantTarget checks that what a link of a file leads to is there, and has its heading.
func (l link) wantTarget(t *testing.T, from string) {
	t.Helper()
	if _, err := os.Stat(repository.Path(t, l.file)); err != nil {
		t.Errorf("%s: %v", from, err)
	} else if l.anchor != "" && !slices.Contains(anchors(repository.Read(t, l.file)), l.anchor) {
		t.Errorf("%s: %s has no heading for #%s", from, l.file, l.anchor)
	}
}

func TestLinksInTextsLead(t *testing.T) {
	linked := map[string][]string{} // texts by the texts that link to them
	records := append(pagesIn(t, "docs/design"), "test/README.md")
	for _, file := range slices.Concat(texts(t), pagesIn(t, "docs/faults"), records) {
		for _, l := range links(file, repository.Read(t, file)) {
			linked[l.file] = append(linked[l.file], l.from)
			l.wantTarget(t, file)
		}
	}
	for _, file := range texts(t)[1:] {
		if file == "docs/index.md" {
			continue // the README of those who come from elsewhere
		}
		if !slices.Contains(linked[file], "README.md") || !slices.Contains(linked["README.md"], file) {
			t.Errorf("README.md and %s do not link to each other", file)
		}
	}
	for _, file := range records {
		if !slices.Contains(linked[file], "CONTRIBUTING.md") {
			t.Errorf("CONTRIBUTING.md does not link to %s", file)
		}
	}
}

// anchors returns the names under which GitHub links a text's headings.
func anchors(text string) []string {
	var names []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(pages.Fence.ReplaceAllString(text, ""),
		-1) {
		kept := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(kept, " ", "-"))
	}
	return names
}

const host = "https://rdma-spec.github.io/"

// address is a page, and a heading of it.
var address = regexp.MustCompile(regexp.QuoteMeta(host) + `([\w./-]*\w/?)(?:#([\w-]+))?`)

// addresses returns the links of a text to the published documentation, as links to files, and what is not below
// docs.Site.
func addresses(file, text string) (all []link, others []string) {
	for _, found := range address.FindAllStringSubmatch(text, -1) {
		page, below := strings.CutPrefix(host+found[1]+"/", docs.Site)
		if !below {
			others = append(others, found[0])
			continue
		}
		if page = strings.Trim(page, "/"); page == "" {
			page = "index"
		}
		all = append(all, link{file, "docs/" + page + ".md", found[2]})
	}
	return all, others
}

// TestPagesNamedInFilesExist checks that the pages that installed files, messages, alerts and comments name are there,
// in the repository and where it is published.
func TestPagesNamedInFilesExist(t *testing.T) {
	page, count := regexp.MustCompile(`\bdocs/[a-z-]+\.(md|svg)\b`), 0
	for _, dir := range []string{"cmd", "deploy", "plugin", "spec", "test", "docs", "README.md"} {
		err := filepath.WalkDir(repository.Path(t, dir), func(file string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == "node_modules" {
				return filepath.SkipDir
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			text := repository.Read(t, file)
			named, others := addresses(file, text)
			for _, name := range page.FindAllString(text, -1) {
				named = append(named, link{file: name})
			}
			for _, other := range others {
				t.Errorf("%s: %s is not below %s", file, other, docs.Site)
			}
			count += len(named)
			for _, l := range named {
				l.wantTarget(t, file)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if count < 50 {
		t.Errorf("%d pages are named, want more", count)
	}
}
