// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// messagesPage leads from what people see to the check that explains it. Its tables, and the messages on the pages of
// checks, are those of package why.
const messagesPage = "../../../../../docs/troubleshoot.md"

// TestTroubleshootPage checks the tables of the page. -update writes them.
func TestTroubleshootPage(t *testing.T) {
	var tables strings.Builder
	seen := map[string]bool{}
	for _, part := range why.Page() {
		slices.SortStableFunc(part.Rows, func(a, b why.Row) int {
			return strings.Compare(strings.ToLower(a.Says[0]), strings.ToLower(b.Says[0]))
		})
		fmt.Fprintf(&tables, "\n## %s\n\n| you see | first cause | page |\n|---|---|---|\n", part.Title)
		for _, row := range part.Rows {
			for _, message := range row.Says {
				if seen[message] {
					t.Errorf("%s is there twice", message)
				}
				seen[message] = true
			}
			fmt.Fprintf(&tables, "| %s | %s | %s |\n", strings.Join(quoted(row.Says), "<br>"), row.Cause,
				strings.Join(links(row.Pages), ", "))
		}
	}
	text := scratch.Read(t, messagesPage)
	generated := regexp.MustCompile(`(?s)(<!-- messages: [^\n]* -->\n).*(\n<!-- end -->\n)`)
	if !generated.MatchString(text) {
		t.Fatalf("%s has no part between its two comments", messagesPage)
	}
	golden.Compare(t, messagesPage, generated.ReplaceAllString(text, "${1}"+strings.ReplaceAll(tables.String(), "$", "$$")+"${2}"))
}

// quoted returns messages as code.
func quoted(messages []string) (all []string) {
	for _, message := range messages {
		message = strings.ReplaceAll(message, "|", `\|`)
		if strings.Contains(message, "`") {
			all = append(all, "`` "+message+" ``")
		} else {
			all = append(all, "`"+message+"`")
		}
	}
	return all
}

// links returns links to checks and other pages.
func links(pages []string) (all []string) {
	for _, page := range pages {
		file, _, _ := strings.Cut(page, "#")
		switch name, other := strings.CutSuffix(file, ".md"); {
		case other:
			all = append(all, fmt.Sprintf("[%s](%s)", path.Base(name), page))
		default:
			all = append(all, fmt.Sprintf("[%s](faults/%[1]s.md)", page))
		}
	}
	return all
}

// messagesOf returns what people see where a check finds a fault, in Markdown: the messages that lead to it first, or
// else all that lead to it. So a message is on one page, that of its first cause. They are in the tables' order, behind
// the one that the page has first now: people put the commonest there.
func messagesOf(check, page string) []string {
	var first, later, firstPairs, laterPairs []string
	for _, part := range why.Page() {
		for _, row := range part.Rows {
			printed := quoted(row.Says)
			var pair []string // an operation and its status, which no program prints like this
			if part.Title == why.AnyProgram {
				pair = printed[:1]
				printed = printed[1:]
			}
			switch slices.Index(row.Pages, check) {
			case -1:
			case 0:
				first = append(first, printed...)
				firstPairs = append(firstPairs, pair...)
			default:
				later = append(later, printed...)
				laterPairs = append(laterPairs, pair...)
			}
		}
	}
	all := slices.Concat(first, firstPairs)
	if len(all) == 0 {
		all = slices.Concat(later, laterPairs)
	}
	commonest := regexp.MustCompile(`\n## Messages\n\n- (.+)\n`).FindStringSubmatch(page)
	if commonest != nil {
		if i := slices.Index(all, commonest[1]); i > 0 {
			all = slices.Concat(all[i:i+1], all[:i], all[i+1:])
		}
	}
	return all
}
