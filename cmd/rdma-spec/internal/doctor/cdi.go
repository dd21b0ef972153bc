// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
)

// QuestionCDI asks for the node's CDI files. The answer is a CDIFiles.
const QuestionCDI Question = "cdi.json"

// CDIFiles are the CDI files of a node, in the order of their priority.
type CDIFiles struct {
	Files []cdi.Found `json:"files"`
}

// cdiChecks are the checks of CDI files.
func cdiChecks() []Check {
	return []Check{{
		ID: "cdi-files", Family: "cdi", Title: "The CDI files of HCAs are right.",
		Messages: []string{"unresolvable CDI devices"},
		Why:      "A container with such a device does not start, or gets another HCA than it asks for.",
		Asks:     []Question{QuestionCDI}, Look: cdiFiles,
	}}
}

// cdiFiles looks at the files of HCAs. Those of other devices are their makers' work.
func cdiFiles(v *View) []Finding {
	var answer CDIFiles
	if err := v.Ask(QuestionCDI, &answer); err != nil {
		return []Finding{unknown("", "The CDI files are unknown: "+err.Error()+".")}
	}
	var found []Finding
	ours := false
	for _, f := range answer.Files {
		if f.Kind != cdi.Kind {
			continue
		}
		ours = true
		if problems := cdiProblems(f); len(problems) > 0 {
			found = append(found, wrong("CDI file "+f.Path, sentence(problems), fmt.Sprintf(
				"rdma-spec configure cdi, or write the file again: $(sed -n 's/^# Made with: //p' %s) --output %s", f.Path, f.Path)))
		}
	}
	if !ours {
		return notApplied("The node has no CDI file of HCAs.")
	}
	return found
}

// cdiProblems returns what is wrong with a file: with all of it, else with its devices.
func cdiProblems(f cdi.Found) (problems []string) {
	if f.Problem != "" {
		return []string{f.Problem}
	}
	for _, d := range f.Devices {
		if d.Problem != "" {
			problems = append(problems, strings.TrimPrefix(d.Name, cdi.Kind+"=")+": "+d.Problem)
		}
	}
	return problems
}
