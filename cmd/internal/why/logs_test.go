// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// answer is what a log must say. Operations and statuses are spelled as those who collected them did.
type answer struct {
	Source, Line, Operation, Status, Check, Confidence, Cause string
	Also                                                      []string
}

// spelling is how this package spells what the answers have.
var spelling = strings.NewReplacer("setrlimit:", "setrlimit ", "module:", "module ", "device_plugin", "device plugin")

var (
	firmwareName = regexp.MustCompile(`^fw:?_?(\w+)$`)
	vendorOf     = regexp.MustCompile(`^(wc\d+)(?: vendor (\d+))?$`)
)

// operationAs is how this package spells an answer's operation.
func operationAs(answer string) string {
	switch answer {
	case "completion":
		return "completion"
	case "async_event":
		return "asynchronous event"
	case "cdi":
		return "CDI"
	case "cni":
		return "CNI plugin"
	case "nri register":
		return "NRI register"
	case "shm":
		return "shared memory"
	case "sharp":
		return "SHARP"
	case "ALLOC_PD":
		return "firmware ALLOC_PD"
	}
	if m := firmwareName.FindStringSubmatch(answer); m != nil {
		return "firmware " + strings.ToUpper(m[1])
	}
	return strings.ReplaceAll(spelling.Replace(answer), ":", " to ")
}

// shapeIn is a line without its numbers: the same error of another rank is as good.
func shapeIn(text string) string {
	return regexp.MustCompile(`\d+|\s+`).ReplaceAllString(Clean(text), "")
}

// statusAs is how this package spells an answer's status.
func statusAs(answer string) (status, detail string) {
	if m := vendorOf.FindStringSubmatch(answer); m != nil {
		for i, c := range completions {
			if m[1] == fmt.Sprint("wc", i) {
				status = c.name
			}
		}
		if m[2] != "" {
			detail = "vendor error " + m[2]
		}
		return status, detail
	}
	switch answer {
	case "local length error":
		return "IBV_WC_LOC_LEN_ERR", ""
	case "fw bad parameter(0x3)":
		return "bad parameter", ""
	}
	return answer, ""
}

func answersOf(t testing.TB) map[string]answer {
	text, err := os.ReadFile("testdata/logs.json")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]answer{}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func readLog(t *testing.T, name string) *Report {
	text, err := os.ReadFile("testdata/logs/" + name + ".log")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRead_publicLogs reads public logs whose answers are known: the line, its operation and its status are right in all of them,
// the first cause in nine of ten of those whose cause somebody confirmed, and a log without a fault raises no alarm.
func TestRead_publicLogs(t *testing.T) {
	known, right := 0, 0
	for name, a := range answersOf(t) {
		r := readLog(t, name)
		if a.Line == "" {
			if r.Matters() {
				t.Errorf("%s: an alarm: %+v", name, r.Roots[0].Line)
			}
			continue
		}
		i := slices.IndexFunc(r.Roots, func(root Root) bool { return root.is(a.Line) })
		if i < 0 {
			t.Errorf("%s: %+v, want the line %q", name, r.Roots, a.Line)
			continue
		}
		root := r.Roots[i]
		status, detail := statusAs(a.Status)
		if root.Operation != operationAs(a.Operation) || root.Status != status || !strings.Contains(root.Detail, detail) {
			t.Errorf("%s: %q %q %q, want %q %q %q", name, root.Operation, root.Status, root.Detail, operationAs(a.Operation),
				status, detail)
		}
		page := "none"
		if causes := r.Roots[0].Causes; len(causes) > 0 {
			page = causes[0].Page
		}
		good := page == a.Check || slices.Contains(a.Also, page)
		if a.Confidence != "inferred" {
			known++
			if good {
				right++
			}
		}
		if !good {
			t.Logf("%s (%s): the page %q, want %q or %q: %s", name, a.Confidence, page, a.Check, a.Also, a.Cause)
		}
	}
	if known < 42 || right*10 < known*9 {
		t.Errorf("the cause of %d in %d is right", right, known)
	}
}

// is reports whether the root is a line, or the same line of another rank.
func (r Root) is(line string) bool {
	return shapeIn(r.Text) == shapeIn(line) || r.StatusLine != nil && shapeIn(r.StatusLine.Text) == shapeIn(line)
}
