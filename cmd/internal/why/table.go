// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The tables are text files. The comment at the beginning of each file describes its format.
var (
	//go:embed messages.txt
	messagesText string
	//go:embed pairs.txt
	pairsText string
	//go:embed causes.txt
	causesText string
	//go:embed errors.txt
	errorsText string
)

// Texts returns the texts of all tables. A support bundle keeps only words from these texts in error messages.
func Texts() []string {
	all := []string{messagesText, pairsText, causesText, errorsText}
	for _, e := range errnos {
		all = append(all, e.name, strings.Join(e.texts, " "))
	}
	return all
}

// message is a message of a program.
type message struct {
	text      string
	kind      kind
	weight    int
	operation string
	status    string
	causes    []string
	note      string
	program   string
	part      string // of docs/troubleshoot.md
	phrase
}

// pair contains the causes of operations with certain statuses.
type pair struct {
	operations []string // a "*" at the end of an operation matches any suffix
	statuses   []string
	line       phrase // text that the line must also contain
	fact       string // a fact that must also be true of the log
	causes     []string
	examples   []string // messages of programs
}

var kinds = map[string]kind{"matters": matters, "weak": weak, "follows": follows, "harmless": harmless,
	"another": another, "fact": fact, "healthy": healthy, "goes on": goesOn, "ends": ends}

var who = map[string]Who{"author": Author, "administrator": Administrator, "either": Either, "program": Program,
	"peer": Peer, "": ""}

// The tables are parsed when a log is first read, because most runs of the programs do not read a log.
var (
	causes   = sync.OnceValue(readCauses)
	messages = sync.OnceValue(readMessages)
	pairs    = sync.OnceValue(readPairs)
)

// cells calls each for every line of a table, with a function that returns a cell, or "" if the cell is missing.
func cells(text string, each func(line string, cell func(int) string)) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "# ") || line == "#" {
			continue
		}
		all := strings.Split(line, " |")
		each(line, func(i int) string {
			if i >= len(all) {
				return ""
			}
			return strings.TrimSpace(all[i])
		})
	}
}

// list splits a cell that contains several names.
func list(cell string) []string {
	if cell == "" {
		return nil
	}
	return strings.Split(cell, ", ")
}

func readCauses() map[string]Cause {
	all := map[string]Cause{}
	cells(causesText, func(line string, cell func(int) string) {
		whose, known := who[cell(2)]
		if _, twice := all[cell(0)]; twice || !known || cell(3) == "" {
			panic("causes.txt: " + line)
		}
		all[cell(0)] = Cause{Page: cell(1), Who: whose, Text: cell(3), Apart: cell(4), See: cell(5)}
	})
	return all
}

func readMessages() (all []message) {
	part := ""
	program := ""
	cells(messagesText, func(line string, cell func(int) string) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			part, program, _ = strings.Cut(heading, " / ")
			return
		}
		name := cell(1)
		weight := 0
		if i := strings.LastIndexByte(name, ' '); i >= 0 && name != "goes on" {
			weight, _ = strconv.Atoi(name[i+1:]) // 0 is none
			name = name[:i]
		}
		kind, known := kinds[name]
		m := message{text: cell(0), kind: kind, weight: weight, program: program, part: part, phrase: phraseOf(cell(0))}
		switch kind {
		case matters, weak:
			m.operation = cell(2)
			m.status = cell(3)
			m.causes = list(cell(4))
		case fact:
			m.operation = cell(2)
		default:
			m.note = cell(2)
			if c, named := causes()[m.note]; named {
				m.note = c.Text
			}
		}
		if !known || len(m.phrase) == 0 || len(m.longest()) < 4 {
			panic("messages.txt: " + line)
		}
		all = append(all, m)
	})
	return all
}

func readPairs() (all []pair) {
	cells(pairsText, func(line string, cell func(int) string) {
		if example, ok := strings.CutPrefix(line, "\t"); ok {
			last := &all[len(all)-1]
			last.examples = append(last.examples, example)
			return
		}
		p := pair{operations: list(cell(0)), statuses: list(cell(1)), causes: list(cell(3))}
		if name, ok := strings.CutPrefix(cell(2), "log: "); ok {
			p.fact = name
		} else {
			p.line = phraseOf(cell(2))
		}
		if len(p.statuses) == 0 {
			panic(fmt.Sprint("pairs.txt: ", line))
		}
		all = append(all, p)
	})
	return all
}

// anchors are words that occur in the lines that the general readers can read.
var anchors = []string{"fail", "error", "cannot", "can't", "can not", "couldn't", "could not", "unable", "ibv_wc",
	"status", "synd", "vend", "async event", "async fatal", "rdma_cm_event", "rejected", "op_mod", "timeout. will",
	"no done completion", "returned", "errno", "refused", "denied", "abort", "invalid", "no such", "not supported",
	"null", "retry count", "protection", "os {", "err info", "fi_getinfo"}

// allWords identifies the lines that are worth reading, by the longest part of each message and by the anchors.
var allWords = sync.OnceValue(index)

func index() *words {
	all := &words{}
	for _, anchor := range anchors {
		all.add(anchor, -1)
	}
	for _, e := range errnos {
		for _, text := range e.texts {
			all.add(text, -1)
		}
		if len(e.name) > 3 {
			all.add(e.name, -1)
		}
	}
	for i, m := range messages() {
		all.add(m.longest(), i)
	}
	return all
}

// causesOf returns the causes of a reading: the causes of its message, or else the causes of its operation and status.
func causesOf(r reading, low string, facts map[string]bool) []Cause {
	all := []Cause{}
	names := r.causes
	if len(names) == 0 {
		if i := slices.IndexFunc(pairs(), func(p pair) bool { return p.isOf(r, low, facts) }); i >= 0 {
			names = pairs()[i].causes
		}
	}
	for _, name := range names {
		all = append(all, causes()[name])
	}
	return all
}

// isOf reports whether a pair matches a reading.
func (p pair) isOf(r reading, low string, facts map[string]bool) bool {
	ofOperation := slices.ContainsFunc(p.operations, func(operation string) bool {
		prefix, any := strings.CutSuffix(operation, "*")
		return operation == r.operation || any && strings.HasPrefix(r.operation, prefix)
	})
	switch {
	case !ofOperation:
		return false
	case !p.line.isIn(low + " " + r.detail), p.fact != "" && !facts[p.fact]:
		return false
	}
	return slices.ContainsFunc(p.statuses, func(status string) bool {
		inside := strings.Trim(status, "*")
		return status == "*" || status == r.status || status == "-" && r.status == "" ||
			inside != status && strings.Contains(r.status, inside)
	})
}
