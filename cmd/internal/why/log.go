// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits for reading and keeping lines. The length of a log is not limited.
const (
	longestLine = 4 << 10 // bytes that are read of a line
	longestText = 400     // bytes that are kept of it
	mostKinds   = 200     // different errors that are told apart
	mostRoots   = 5       // that are reported
	mostRemarks = 8
	statusLines = 6 // the lines after an error on which its status may stand
)

// Read reads a log.
func Read(from io.Reader) (*Report, error) {
	l := logReader{facts: map[string]bool{}, read: map[uint64]bool{}}
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			full := !errors.Is(err, bufio.ErrBufferFull)
			l.line(line[:min(len(line), longestLine)])
			for !full { // the rest of an endless line
				_, err = lines.ReadSlice('\n')
				full = !errors.Is(err, bufio.ErrBufferFull)
			}
		}
		if errors.Is(err, io.EOF) {
			return l.report(), nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// found is an error in a log, with all lines that report the same error.
type found struct {
	reading
	first      Line
	statusLine *Line
	low        string // the first line in small letters
	times      int
}

// logReader is the state of reading a log.
type logReader struct {
	number  int
	lower   []byte
	hits    []int
	errors  []*found
	remarks []Remark
	facts   map[string]bool
	read    map[uint64]bool // shapes of lines that say nothing new

	open       *found // its status may follow
	openUntil  int
	refused    int  // the last line in which a connection was refused
	last       int  // line that matters
	runs, ends int  // lines that are signs of either
	other      bool // a problem that is not about RDMA, or an HCA that works
}

// A row of a benchmark: a size, and what was measured. The bytes of a completion have no point.
var resultRow = lazily(`^\s*\d+(\s+\d+){0,3}\s+\d+\.\d+(\s+[\d.]+){0,6}\s*$`)

// line reads the next line.
func (l *logReader) line(raw []byte) {
	l.number++
	raw = bytes.TrimRight(raw, "\r\n")
	if bytes.IndexByte(raw, '\x1b') >= 0 { // a color ends with a letter, which the next word would begin with
		raw = []byte(escape.ReplaceAllString(string(raw), ""))
	}
	if bytes.Contains(raw, []byte("\u2019")) { // a chat or a ticket has made it of an apostrophe
		raw = bytes.ReplaceAll(raw, []byte("\u2019"), []byte("'"))
	}
	l.lower = l.lower[:0]
	for _, b := range raw {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		l.lower = append(l.lower, b)
	}
	l.hits = l.hits[:0]
	worth := false
	allWords().find(l.lower, func(id int) {
		worth = true
		if id >= 0 && !slices.Contains(l.hits, id) {
			l.hits = append(l.hits, id)
		}
	})
	pending := l.open != nil && l.number <= l.openUntil
	if !worth && !pending {
		if len(raw) < 120 && resultRow.Match(raw) {
			l.runs = l.number
		}
		return
	}
	shape := shapeOf(l.lower)
	if l.read[shape] && !pending {
		return
	}
	low := string(l.lower)
	if strings.Contains(low, "connect: connection refused") {
		l.refused = l.number
	}
	text := string(raw)
	for _, i := range l.hits {
		if m := messages()[i]; m.kind == fact && m.isIn(low) {
			l.facts[m.operation] = true
		}
	}
	r, ok := read(low, l.hits)
	if pending {
		l.status(low, text, r, ok)
	}
	if !ok {
		l.remember(shape)
		return
	}
	l.take(r, text, low, shape)
}

// remember keeps the shape of an irrelevant line, so that similar lines are skipped.
func (l *logReader) remember(shape uint64) {
	if len(l.read) < 1<<16 {
		l.read[shape] = true
	}
}

// shapeOf is a line without its numbers, as a hash (FNV-1a).
func shapeOf(low []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range low {
		if '0' <= b && b <= '9' {
			continue
		}
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// statusAlone is a line that only continues an error.
var statusAlone = lazily(`\berrno\b|^\W*(?:err(?:or)?|err info|reason|caused? by|message|os error)\b|\bos \{ code`)

// status completes an error without a status with the status from one of the next lines.
func (l *logReader) status(low, text string, r reading, ok bool) {
	status := ""
	switch {
	case statusAlone.MatchString(low):
		status = errno(low)
	case ok && r.kind == matters && l.number-l.open.first.Number <= 2:
		status = r.status
	}
	if byName[strings.ToLower(status)] == "" {
		return
	}
	l.open.status = status
	l.open.open = false
	l.open.weight += withStatus
	line := l.keep(text, r)
	l.open.statusLine = &line
	l.open = nil
}

// take keeps the reading of a line.
func (l *logReader) take(r reading, text, low string, shape uint64) {
	switch r.kind {
	case goesOn:
		l.runs = l.number
		return
	case ends:
		l.ends = l.number
		return
	case another, healthy:
		l.other = true
	}
	if r.kind > weak {
		l.remark(r, text)
		if r.kind != follows || r.operation != "completion" {
			l.remember(shape)
		}
		return
	}
	if r.operation == "device plugin register" && r.status == "deadline exceeded" && l.refused > 0 {
		r.status = "ECONNREFUSED" // the outermost of wrapped errors says the least
	}
	l.last = l.number
	for _, f := range l.errors {
		if f.operation == r.operation && f.status == r.status && f.kind == r.kind && slices.Equal(f.causes, r.causes) {
			f.times++
			if r.weight > f.weight { // the kernel's own line, after a program's
				f.weight = r.weight
				f.first = l.keep(text, r)
				f.low = low
				f.statusLine = nil
			}
			return
		}
	}
	if len(l.errors) == mostKinds {
		return
	}
	f := &found{reading: r, first: l.keep(text, r), low: low, times: 1}
	l.errors = append(l.errors, f)
	if f.open {
		l.open = f
		l.openUntil = l.number + statusLines
	}
}

// remark keeps a line that does not matter, once for each kind.
func (l *logReader) remark(r reading, text string) {
	known := slices.ContainsFunc(l.remarks, func(other Remark) bool {
		return other.Reason == r.note && other.Operation == r.operation
	})
	if r.note != "" && !known && len(l.remarks) < mostRemarks {
		l.remarks = append(l.remarks, Remark{l.keep(text, r), r.note})
	}
}

// keep returns the part of a line that is kept.
func (l *logReader) keep(text string, r reading) Line {
	line := Line{Number: l.number, Text: Clean(text), Program: r.program, Operation: r.operation, Status: r.status,
		Detail: Clean(r.detail)}
	if m := device.FindStringSubmatch(text); m != nil {
		line.Device = Clean(m[1])
	}
	if m := rank.FindStringSubmatch(text); m != nil {
		line.Rank = Clean(cmp.Or(m[1:]...))
	}
	return line
}

// Clean returns a text without terminal escape sequences and control characters, shortened if it is long.
func Clean(text string) string {
	text = strings.TrimSpace(text)
	cut := len(text) > longestText
	if cut {
		text = text[:longestText]
		for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) && utf8.RuneStart(text[len(text)-1]) {
			text = text[:len(text)-1]
		}
	}
	text = escape.ReplaceAllString(text, "")
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r) && r != utf8.RuneError:
			return r
		}
		return '\uFFFD'
	}, text)
	if cut {
		text += "…"
	}
	return strings.TrimSpace(text)
}

// escape are sequences that color a text.
var escape = lazily(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// report returns the report on the whole log.
func (l *logReader) report() *Report {
	r := &Report{Lines: l.number, Roots: []Root{}, Remarks: []Remark{}}
	goes := l.runs > 0 && l.runs > l.last && l.ends < l.runs
	l.join()
	slices.SortStableFunc(l.errors, func(a, b *found) int { return cmp.Compare(b.weight, a.weight) })
	strong := len(l.errors) > 0 && l.errors[0].kind == matters
	for _, f := range l.errors {
		f.first.Status = f.status
		f.first.Operation = f.operation
		switch {
		case goes && f.weight < ofKernel:
			r.Remarks = append(r.Remarks, Remark{f.first,
				"the log continues after this line: if the job is still running, the line is harmless"})
		case f.kind == weak && (l.other || l.runs > 0):
			r.Remarks = append(r.Remarks, Remark{f.first, "this line matters only if the program is supposed to use this HCA"})
		case f.kind == weak && strong:
			r.Remarks = append(r.Remarks, Remark{f.first, "a consequence of the first error"})
		case len(r.Roots) < mostRoots:
			r.Roots = append(r.Roots, Root{Line: f.first, StatusLine: f.statusLine, Times: f.times,
				Causes: causesOf(f.reading, f.low, l.facts), weight: f.weight})
		}
	}
	r.Remarks = append(r.Remarks, l.remarks...)
	slices.SortStableFunc(r.Remarks, func(a, b Remark) int { return cmp.Compare(a.Number, b.Number) })
	r.Remarks = r.Remarks[:min(len(r.Remarks), mostRemarks)]
	return r
}

// join merges errors of the same operation if one of them lacks the status, because two programs report the same call.
func (l *logReader) join() {
	var kept []*found
	for _, f := range l.errors {
		into := slices.IndexFunc(kept, func(k *found) bool {
			return k.kind == f.kind && k.operation == f.operation && len(k.causes) == 0 && len(f.causes) == 0 &&
				(k.status == f.status || k.status == "" || f.status == "")
		})
		if into < 0 {
			kept = append(kept, f)
			continue
		}
		k := kept[into]
		k.times += f.times
		if f.weight-k.weight > withStatus { // a call's name says more than a sentence
			k.first = f.first
			k.low = f.low
		}
		if k.status == "" && f.status != "" {
			line := f.first
			k.status = f.status
			k.statusLine = cmp.Or(f.statusLine, &line)
		}
		k.weight = max(k.weight, f.weight)
	}
	l.errors = kept
}
