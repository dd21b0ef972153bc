// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package why finds the causes of errors in the logs of programs that use RDMA.
//
// Regardless of the program that printed it, a relevant line contains an operation and a status, such as ibv_reg_mr and
// ENOMEM, a completion and IBV_WC_RETRY_EXC_ERR, or a firmware command and its status. Tables contain the programs'
// messages, and the causes of each pair of an operation and a status. A log is untrusted text: the package keeps a
// limited amount of it, and replaces control characters.
//
// The package accesses neither the node nor the network. The doctor's findings on the node can change the order of the
// causes: see Report.Prefer.
package why

import (
	"slices"
)

// Line is a line of a log, with its operation and status.
type Line struct {
	// Number is the line's number in the log. The first line is 1.
	Number int `json:"number"`
	// Text is the line without control characters. Long lines are cut.
	Text string `json:"text"`
	// Rank is the process that printed the line, if the line begins with the process's name.
	Rank string `json:"rank,omitempty"`
	// Program is the program or library that printed the line, such as NCCL.
	Program string `json:"program,omitempty"`
	// Operation is the operation that failed, such as ibv_reg_mr.
	Operation string `json:"operation,omitempty"`
	// Status is the error of the operation, such as ENOMEM. Status is omitted if the line contains no status.
	Status string `json:"status,omitempty"`
	// Detail is an additional detail, such as the vendor error of a completion.
	Detail string `json:"detail,omitempty"`
	// Device is the HCA that the line names.
	Device string `json:"device,omitempty"`
}

// Cause is a possible cause of an error.
type Cause struct {
	// Text describes the cause, in Markdown.
	Text string `json:"text"`
	// Page is the name of the check that finds the cause. The check's page explains the cause.
	Page string `json:"page,omitempty"`
	// See is another page of the documentation, relative to docs.
	See string `json:"see,omitempty"`
	// Apart explains how to distinguish this cause from the next cause.
	Apart string `json:"apart,omitempty"`
	// Who names the people who can fix the cause, or states that the node is not at fault.
	Who Who `json:"who,omitempty"`
	// Wrong is true if the result of the check on the node is "wrong".
	Wrong bool `json:"wrong,omitempty"`
}

// Who names the people who can fix a cause, or states that the node is not at fault.
type Who string

// The values of Who.
const (
	Author        Who = "pod author"
	Administrator Who = "administrator"
	Either        Who = "pod author or administrator"
	Program       Who = "the program, not the node"
	Peer          Who = "the other node: read the peer's log"
)

// Root is a line of the log that shows a cause of the failure, with its possible causes.
type Root struct {
	Line
	// StatusLine is the line that contains the status, if the status is on another line.
	StatusLine *Line `json:"statusLine,omitempty"`
	// Times is the number of lines with the same error.
	Times int `json:"times"`
	// Causes are the possible causes. The most likely cause is first. The list is empty if no cause is known.
	Causes []Cause `json:"causes"`

	weight int
}

// Remark is a line that looks like an error but does not matter.
type Remark struct {
	Line
	// Reason explains why the line does not matter.
	Reason string `json:"reason"`
}

// Report is the result of reading a log.
type Report struct {
	// Lines is the number of lines in the log.
	Lines int `json:"lines"`
	// Roots are the lines that matter. The most important line is first.
	Roots []Root `json:"roots"`
	// Remarks are lines that are consequences of other lines, are harmless, or are not about RDMA.
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

// Prefer moves causes whose check finds a fault on a node to the front.
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
