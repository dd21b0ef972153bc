// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"
)

// Part is a part of docs/troubleshoot.md.
type Part struct {
	Title string
	Rows  []Row
}

// Row contains messages that have the same causes.
type Row struct {
	Says  []string
	Cause string   // the first cause, or the reason why the messages do not matter
	Pages []string // of the causes, the most likely first: checks, and other pages below docs, which end with .md
}

// AnyProgram is the part about operations and statuses.
const AnyProgram = "Any program"

// Page returns the tables for readers who search for a message, in the order of the text files: first operations and
// statuses, and then the messages of programs.
func Page() []Part {
	parts := []Part{{Title: AnyProgram}}
	for _, p := range pairs() {
		if len(p.causes) > 0 {
			parts[0].add(causes()[p.causes[0]].Text, pagesOf(p.causes), append([]string{p.name()}, p.examples...)...)
		}
	}
	for _, m := range messages() {
		if m.part == "" || m.kind > weak && m.note == "" || strings.Contains(m.text, `\"`) { // an escaped text is no other
			continue
		}
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Title == m.part })
		if i < 0 {
			i = len(parts)
			parts = append(parts, Part{Title: m.part})
		}
		text := m.note
		names := m.causes
		if m.kind <= weak && len(names) == 0 {
			names = m.ofPair()
		}
		if len(names) > 0 {
			text = causes()[names[0]].Text
		}
		if text != "" {
			parts[i].add(text, pagesOf(names), m.text)
		}
	}
	return parts
}

// name returns the name of a pair, such as "ibv_reg_mr: ENOMEM".
func (p pair) name() string {
	operations := strings.Join(p.operations, ", ")
	var statuses []string
	for _, status := range p.statuses {
		switch status {
		case "*":
			return operations
		case "-":
			status = "no status"
		}
		statuses = append(statuses, status)
	}
	name := operations + ": " + strings.Join(statuses, ", ")
	if len(p.line) > 0 {
		name += ", " + strings.Join(p.line, "…")
	}
	if p.fact != "" {
		name += ", " + p.fact
	}
	return name
}

// ofPair returns the causes of a message that lists no causes, as if the line contained only the message.
func (m message) ofPair() []string {
	r := reading{operation: m.operation, status: m.status}
	low := strings.ToLower(m.text)
	if r.operation == modifyQP {
		r.operation += " to " + stateOf(low)
	}
	switch r.status {
	case "":
		r.status = errno(low)
	case "-":
		r.status = ""
	}
	for _, p := range pairs() {
		if p.isOf(r, low, nil) {
			return p.causes
		}
	}
	return nil
}

// pagesOf returns the pages of causes, each once.
func pagesOf(names []string) (pages []string) {
	for _, name := range names {
		for _, page := range []string{causes()[name].Page, causes()[name].See} {
			if page != "" && !slices.Contains(pages, page) {
				pages = append(pages, page)
			}
		}
	}
	return pages
}

// add adds messages to the row with their causes.
func (p *Part) add(cause string, pages []string, says ...string) {
	for i := range p.Rows {
		row := &p.Rows[i]
		if p.Title != AnyProgram && row.Cause == cause && slices.Equal(row.Pages, pages) {
			row.Says = append(row.Says, says...)
			return
		}
	}
	p.Rows = append(p.Rows, Row{says, cause, pages})
}
