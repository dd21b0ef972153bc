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
	Number    int    `json:"number"`              // in the log, from 1
	Text      string `json:"text"`                // without control characters, cut at a length
	Rank      string `json:"rank,omitempty"`      // the process that printed it, where the line begins with its name
	Program   string `json:"program,omitempty"`   // such as NCCL
	Operation string `json:"operation,omitempty"` // such as ibv_reg_mr
	Status    string `json:"status,omitempty"`    // such as ENOMEM; "" where none is printed
	Detail    string `json:"detail,omitempty"`    // such as the vendor's error of a completion
	Device    string `json:"device,omitempty"`    // the HCA that the line names
}

// Cause is one that a line can have.
type Cause struct {
	Text  string `json:"text"`            // what it is, in Markdown
	Page  string `json:"page,omitempty"`  // the check that finds it, whose page explains it
	See   string `json:"see,omitempty"`   // another page of the documentation, below docs
	Apart string `json:"apart,omitempty"` // how to tell it from the next one
	Who   Who    `json:"who,omitempty"`   // who can fix it
	Wrong bool   `json:"wrong,omitempty"` // the check is wrong on the node that was looked at
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

// Root is a line that matters, with its causes: the most likely first, none where the cause is not known.
type Root struct {
	Line
	StatusLine *Line   `json:"statusLine,omitempty"` // where another line has the status
	Times      int     `json:"times"`                // how many lines say the same
	Causes     []Cause `json:"causes"`               // the most likely first; none if that is not known

	weight int
}

// Remark is a line that looks bad, and why it does not matter here.
type Remark struct {
	Line
	Reason string `json:"reason"` // why it does not matter
}

// Report is what a log says.
type Report struct {
	Lines   int      `json:"lines"`   // of the log
	Roots   []Root   `json:"roots"`   // the one that matters most first
	Remarks []Remark `json:"remarks"` // what follows from other lines, does not matter, or is not about RDMA
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
