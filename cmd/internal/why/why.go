// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package why finds the causes of errors in the logs of programs that use RDMA.
//
// A relevant line contains an operation and a status, whatever program printed it: ibv_reg_mr and ENOMEM, a completion
// and IBV_WC_RETRY_EXC_ERR, a firmware command and its status. Tables contain the programs' messages, and the causes of
// each pair of an operation and a status. A log is untrusted text: what the package keeps of it is limited in size, and
// contains no control characters.
//
// The package accesses neither the node nor the network. The doctor's findings on the node can change the order of the
// causes: see Report.Prefer.
package why

import (
	"slices"
)

// Line is a line of a log, and what it says.
type Line struct {
	// Number is the line's number in the log. The first line is 1.
	Number int `json:"number"`
	// Text is the line without control characters. Long lines are cut.
	Text string `json:"text"`
	// Rank is the process that printed the line, if the line begins with its name.
	Rank string `json:"rank,omitempty"`
	// Program is the program or library that printed the line, such as NCCL.
	Program string `json:"program,omitempty"`
	// Operation is what failed, such as ibv_reg_mr.
	Operation string `json:"operation,omitempty"`
	// Status is how the operation failed, such as ENOMEM. It is omitted if the line does not contain it.
	Status string `json:"status,omitempty"`
	// Detail is a further detail, such as the vendor error of a completion.
	Detail string `json:"detail,omitempty"`
	// Device is the HCA that the line names.
	Device string `json:"device,omitempty"`
}

// Cause is a possible cause of an error.
type Cause struct {
	// Text describes the cause, in Markdown.
	Text string `json:"text"`
	// Page is the check that finds the cause, and whose page explains it.
	Page string `json:"page,omitempty"`
	// See is another page of the documentation, relative to docs.
	See string `json:"see,omitempty"`
	// Apart is how to tell this cause from the next one.
	Apart string `json:"apart,omitempty"`
	// Who is who can fix the cause.
	Who Who `json:"who,omitempty"`
	// Wrong is true if the check reports wrong on the node.
	Wrong bool `json:"wrong,omitempty"`
}

// Who is who can fix a cause.
type Who string

// Those who can.
const (
	Author        Who = "pod author"
	Administrator Who = "administrator"
	Either        Who = "pod author or administrator"
	Program       Who = "the program, not the node"
	Peer          Who = "the other node: read the peer's log"
)

// Root is a line that matters, with its causes.
type Root struct {
	Line
	// StatusLine is the line that contains the status, if it is another line.
	StatusLine *Line `json:"statusLine,omitempty"`
	// Times is the number of lines that say the same.
	Times int `json:"times"`
	// Causes are the possible causes. The most likely one is first. The list is empty if no cause is known.
	Causes []Cause `json:"causes"`

	weight int
}

// Remark is a line that looks bad, and why it does not matter here.
type Remark struct {
	Line
	// Reason is why the line does not matter.
	Reason string `json:"reason"`
}

// Report is what a log says.
type Report struct {
	// Lines is the number of lines in the log.
	Lines int `json:"lines"`
	// Roots are the lines that matter. The most important one is first.
	Roots []Root `json:"roots"`
	// Remarks are lines that follow from other lines, do not matter, or are not about RDMA.
	Remarks []Remark `json:"remarks"`
}

// Matters reports whether a line that matters was found.
func (r *Report) Matters() bool { return len(r.Roots) > 0 }

// Pages returns the checks of the causes, each once.
func (r Root) Pages() (pages []string) {
	for _, cause := range r.Causes {
		if cause.Page != "" && !slices.Contains(pages, cause.Page) {
			pages = append(pages, cause.Page)
		}
	}
	return pages
}

// Pages returns the checks of all causes, each once.
func (r *Report) Pages() (pages []string) {
	for _, root := range r.Roots {
		for _, page := range root.Pages() {
			if !slices.Contains(pages, page) {
				pages = append(pages, page)
			}
		}
	}
	return pages
}

// Prefer puts the causes first whose check is wrong on a node.
func (r *Report) Prefer(wrong func(check string) bool) {
	for i := range r.Roots {
		causes := r.Roots[i].Causes
		for j := range causes {
			causes[j].Wrong = causes[j].Page != "" && wrong(causes[j].Page)
		}
		slices.SortStableFunc(causes, func(a, b Cause) int {
			switch {
			case a.Wrong == b.Wrong:
				return 0
			case a.Wrong:
				return -1
			}
			return 1
		})
	}
}
