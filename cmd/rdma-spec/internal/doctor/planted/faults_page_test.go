// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// faultsPage lists the pages in faultPages, which findings link to.
const (
	faultsPage = "../../../../../docs/faults.md"
	faultPages = "../../../../../docs/faults"
)

// familyTitles are the headings of the families, in the page.
var familyTitles = map[string]string{
	"hca": "HCAs and ports", "modules": "Kernel modules", "devices": "Devices",
	"netns": "Network namespaces", "gpu": "GPUs",
	"kernel log": "The kernel log", "memory": "Memory", "runtime": "Container runtimes",
	"nri": "NRI", "plugin": "The plugin",
	"cdi": "CDI files", "containers": "Containers", "kubelet": "The kubelet",
}

// TestFaultsPage checks that each check has a page with the messages that lead to it, and that the page of faults lists
// all of them. -update writes them.
func TestFaultsPage(t *testing.T) {
	var list strings.Builder
	shown, family, pages, titled := examples(t), "", map[string]bool{}, map[string]string{}
	for _, c := range checks() {
		pages[c.ID+".md"] = true
		file := filepath.Join(faultPages, c.ID+".md")
		title, part, err := written(c.ID)
		if err != nil {
			continue // TestChecksAreComplete says so
		}
		if other := titled[title]; other != "" {
			t.Errorf("%s and %s have the same title", c.ID, other)
		}
		titled[title] = c.ID
		before := "\n"
		if c.Family != family {
			family = c.Family
			before = fmt.Sprintf("\n\n## %s\n\n", familyTitles[family])
		}
		fmt.Fprintf(&list, "%s- [%s](faults/%s.md): `%[3]s`", before, title, c.ID)
		example, needed := shown[c.ID], strings.Contains(strings.Join(strings.Fields(part), " "), "as in the example")
		if needed && example.Fix == "" {
			t.Errorf("the page of %s leads to an example, and no planted fault gives one", c.ID)
		} else if !needed {
			example = doctor.Finding{}
		}
		golden.Compare(t, file, page(c, title, part, messagesOf(c.ID, scratch.Read(t, file)), example))
	}
	text := scratch.Read(t, faultsPage)
	generated := regexp.MustCompile(`(?s)(<!-- checks: [^\n]* -->\n).*(\n<!-- end -->\n)`)
	if !generated.MatchString(text) {
		t.Fatalf("%s has no part between its two comments", faultsPage)
	}
	golden.Compare(t, faultsPage, generated.ReplaceAllString(text, "${1}"+list.String()[1:]+"\n${2}"))
	entries, err := os.ReadDir(faultPages)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !pages[e.Name()] {
			t.Errorf("%s is about no check: remove it", filepath.Join(faultPages, e.Name()))
		}
	}
}

// page is what a check is about, for somebody who has no access to the node: what people wrote about it, between what
// it says itself, the messages that lead to it, and a finding with its command where the written part leads to it.
func page(c doctor.Check, title, written string, said []string, shown doctor.Finding) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[Faults](../faults.md)\n\n# %s\n\n**Check:** `%s`. **Expected:** %s\n\n**Impact:** %s\n\n%s",
		title, c.ID, c.Title, c.Impact, written)
	text.WriteString("\n## Messages\n\n")
	for _, message := range said {
		fmt.Fprintf(&text, "- %s\n", message)
	}
	switch {
	case c.NoMessages != "" && len(said) > 0:
		fmt.Fprintf(&text, "\nThis fault can also occur without a message. Symptom: %s.\n", c.NoMessages)
	case c.NoMessages != "":
		fmt.Fprintf(&text, "No message names this fault. Symptom: %s.\n", c.NoMessages)
	}
	if shown.Fix == "" {
		return text.String()
	}
	found, how := shown.Text, "This command is safe to run now:"
	if shown.Object != "" {
		found = shown.Object + ": " + found
	}
	if shown.FixType == doctor.FixDisruptive {
		how = fmt.Sprintf("This command is disruptive. %s To see what is affected, run `%s`.", plain(shown.Warning), shown.Affected)
	}
	fmt.Fprintf(&text, "\n## Example\n\n**%s**\n\n%s\n\n```sh\n%s\n```\n", plain(found), how, shown.Fix)
	return text.String()
}

// titleLine is the title of a page, which people write: what somebody sees who has the fault.
var titleLine = regexp.MustCompile(`(?m)^# (.+)$`)

// writtenPart is what people write below it: what to do, how to see the fault without the doctor, and the causes, the
// most likely first.
var writtenPart = regexp.MustCompile(`(?s)\n\n(## Fix\n\n(.*)\n## Causes\n\nTo diagnose: [^\n]+\n\n(.*\n))\n## Messages\n`)

var (
	aCause  = regexp.MustCompile(`(?s)^\*\*[^*]+[.)]\*\* .{8,} Fix: .{4,}$`)
	whoActs = regexp.MustCompile(`(?s)^- \*\*Administrator:\*\* .{9,}\n- \*\*Pod author:\*\* .{7,}\n$`)
)

// toWrite stands where people have to write.
const toWrite = "TO WRITE"

const skeletonTitle = "TO WRITE: what somebody sees who has the fault, as a sentence without its full stop"

// skeleton is the written part of a new page.
const skeleton = `## Fix

- **Administrator:** TO WRITE: what the administrator of the node does.
- **Pod author:** TO WRITE: what the author of a pod does.

## Causes

To diagnose: TO WRITE: a command that shows the fault without the doctor.

1. **TO WRITE: the most likely cause.** How to tell it apart. Fix: what to do about it.
1. **TO WRITE: the next one.** How to tell it apart. Fix: what to do about it.
`

// written returns what people wrote on the page of a check, its title and the part below, or all that is missing.
func written(check string) (title, part string, err error) {
	file := "docs/faults/" + check + ".md"
	text, err := os.ReadFile(filepath.Join(faultPages, check+".md"))
	if err != nil {
		return "", "", fmt.Errorf("%s is missing: `make update` writes what every page has, and says what is left to write", file)
	}
	named := titleLine.FindStringSubmatch(string(text))
	found := writtenPart.FindStringSubmatch(string(text))
	if named == nil || found == nil {
		return "", "", fmt.Errorf("%s: want a title, and these sections above Messages:\n%s", file, skeleton)
	}
	problems := unwritten(named[0]+"\n"+found[1], found[2], found[3])
	if named[1] == check || strings.HasSuffix(named[1], ".") {
		problems = append(problems, "write a title that somebody searches who has the fault, without a full stop")
	}
	if len(problems) > 0 {
		return "", "", fmt.Errorf("%s:\n- %s", file, strings.Join(problems, "\n- "))
	}
	return named[1], found[1], nil
}

// unwritten returns what is missing in the part that people write, below Fix, and below Causes.
func unwritten(all, fix, why string) (problems []string) {
	for line := range strings.Lines(all) {
		if strings.Contains(line, toWrite) {
			problems = append(problems, "replace this line: "+strings.TrimSpace(line))
		}
	}
	if !whoActs.MatchString(fix) {
		problems = append(problems, "below Fix, write `- **Administrator:** ...` and `- **Pod author:** ...`, and nothing else")
	}
	causes := strings.Split("\n"+why, "\n1. ")[1:]
	if len(causes) < 2 {
		problems = append(problems, "below Causes, write two causes at least, the most likely first, each behind `1. `")
	}
	for _, cause := range causes {
		if !aCause.MatchString(strings.ReplaceAll(cause, "\n  ", "")) {
			problems = append(problems, "write `1. **The cause.** How to tell it apart. Fix: what to do.` instead of: "+strings.TrimSpace(cause))
		}
	}
	return problems
}

// TestUnwritten checks that a page is not done before people have written it, and that they are told all that is
// missing.
func TestUnwritten(t *testing.T) {
	const (
		fix    = "- **Administrator:** Reboot the node.\n- **Pod author:** Wait for it.\n"
		causes = "1. **It is old.** The label says so. Fix: replace it.\n1. **It is hot.** Touch it. Fix: cool it.\n"
	)
	whole := writtenPart.FindStringSubmatch("\n\n" + skeleton + "\n## Messages\n")
	if whole == nil {
		t.Fatal("the skeleton does not have the sections of a page")
	}
	for name, test := range map[string]struct {
		all, fix, causes string
		want             int
	}{
		"written":       {fix + causes, fix, causes, 0},
		"the skeleton":  {whole[1], whole[2], whole[3], 5},
		"nobody acts":   {"", "Reboot the node.\n", causes, 1},
		"one cause":     {"", fix, "1. **It is old.** The label says so. Fix: replace it.\n", 1},
		"no fix":        {"", fix, "1. **It is old.** The label says so.\n1. **It is hot.** Touch it.\n", 2},
		"nothing is so": {"", "", "", 2},
	} {
		if got := unwritten(test.all, test.fix, test.causes); len(got) != test.want {
			t.Errorf("%s: %d problems, want %d: %q", name, len(got), test.want, got)
		}
	}
}

// TestPagesHaveNoGaps checks that no page has what a fixture leaves out: an empty text, the year 1, a name in capitals.
func TestPagesHaveNoGaps(t *testing.T) {
	gaps := regexp.MustCompile(`: \*\*\n|0001-01-01|\b(Mlx5|Nvidia\.com|Rxe|Net)[0-9/_]|%!|\(MISSING\)|<nil>|\n\n\n|: \n|fabric0`)
	for _, page := range docs.FaultPages() {
		if gap := gaps.FindString(page); gap != "" {
			t.Errorf("a page has the gap %q:\n%s", gap, page)
		}
	}
}

// examples returns what each check finds first, on the nodes with planted faults, that a command fixes. What is fixed
// by hand is in the written part.
func examples(t *testing.T) map[string]doctor.Finding {
	found := map[string]doctor.Finding{}
	add := func(check, object string, all []doctor.Finding) {
		for _, f := range all {
			command := f.Status == doctor.Wrong && (f.FixType == doctor.FixSafe || f.FixType == doctor.FixDisruptive)
			if _, known := found[check]; !known && command && f.Check == check && f.Object == object {
				found[check] = f
			}
		}
	}
	for _, p := range faults() {
		add(p.check, p.object, p.look(t))
	}
	return found
}

// plain is a sentence in Markdown.
func plain(text string) string {
	return strings.NewReplacer("*", `\*`, "<", `\<`, "`", "'", "$", `\$`).Replace(text)
}

// TestPages_existForChecks checks that --explain has the page of each check.
func TestPages_existForChecks(t *testing.T) {
	for _, c := range checks() {
		if text, err := docs.Fault(c.ID); err != nil || !strings.Contains(text, "\n**Check:** `"+c.ID+"`. ") {
			t.Errorf("docs/faults/%s.md: the page was missing when this test was built, or lacks its check: run `make update` again: %v", c.ID, err)
		}
	}
}
