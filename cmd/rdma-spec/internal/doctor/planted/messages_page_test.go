// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// messagesPage leads from what people see to the check that explains it. From its tables come the messages on the pages
// of checks, and so what the search of the site finds.
const messagesPage = "../../../../../docs/troubleshoot.md"

// wording is what programs say for one cause: a row of a table of the page.
type wording struct {
	says   []string // in Markdown
	causes []string // the checks, or other pages, that explain it, the most likely first
}

var (
	wordingRow = regexp.MustCompile("(?m)^\\| (`.+`) \\| (.*) \\| (.*) \\|$")
	linkText   = regexp.MustCompile(`\[([^\]]+)\]\(`)
)

// wordings returns the rows of the page. Each has a cause in words, and no message is there twice.
func wordings(t *testing.T) (all []wording) {
	t.Helper()
	seen := map[string]bool{}
	for _, row := range wordingRow.FindAllStringSubmatch(scratch.Read(t, messagesPage), -1) {
		w := wording{says: strings.Split(row[1], "<br>")}
		for _, link := range linkText.FindAllStringSubmatch(row[3], -1) {
			w.causes = append(w.causes, link[1])
		}
		for _, message := range w.says {
			if seen[message] || row[2] == "" {
				t.Errorf("%s is there twice, or has no cause", message)
			}
			seen[message] = true
		}
		all = append(all, w)
	}
	return all
}

// messagesOf returns what people see where a check finds a fault: the messages that lead to it first, or else all that
// lead to it. So a message is on one page, that of its first cause.
func messagesOf(all []wording, check string) []string {
	var first, later []string
	for _, w := range all {
		switch slices.Index(w.causes, check) {
		case -1:
		case 0:
			first = append(first, w.says...)
		default:
			later = append(later, w.says...)
		}
	}
	if len(first) == 0 {
		first = later
	}
	slices.SortFunc(first, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return first
}
