// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build js

// Command browser is package why for a browser: the box "Paste your log" on the site runs it in a worker. It defines
// the object why, whose functions accept a log in parts, and return the report of package why as JSON. It makes no
// requests.
//
// Compressed with gzip, the program has a size of 1.1 MB. Half of this size is Go's runtime. A second implementation in
// JavaScript would be smaller, but its results could differ from the results of the command.
package main

import (
	"encoding/json"
	"io"
	"reflect"
	"syscall/js"

	"github.com/rdma-spec/rdma-spec/cmd/internal/why"
)

func main() {
	var log logReader
	js.Global().Set("why", js.ValueOf(map[string]any{
		"begin": js.FuncOf(func(js.Value, []js.Value) any {
			log.begin()
			return nil
		}),
		"write": js.FuncOf(func(_ js.Value, args []js.Value) any {
			log.write(args[0])
			return nil
		}),
		"end": js.FuncOf(func(js.Value, []js.Value) any { return text(linked(log.end())) }),
		"answer": js.FuncOf(func(_ js.Value, args []js.Value) any {
			return text(why.Answer(args[0].String(), args[1].String()))
		}),
	}))
	select {} // the functions are called as long as the worker lives
}

// logReader reads a log that comes in parts.
type logReader struct {
	parts  *io.PipeWriter
	report chan *why.Report
	part   []byte
}

// begin starts to read a log. It drops an earlier log that has not ended.
func (l *logReader) begin() {
	if l.parts != nil {
		l.end()
	}
	parts, log := io.Pipe()
	l.parts = log
	l.report = make(chan *why.Report)
	go func(done chan<- *why.Report) {
		report, _ := why.Read(parts) // what writes it reports no error
		done <- report
	}(l.report)
}

// write reads the next part, a Uint8Array.
func (l *logReader) write(part js.Value) {
	length := part.Length()
	if len(l.part) < length {
		l.part = make([]byte, length)
	}
	js.CopyBytesToGo(l.part, part)
	_, _ = l.parts.Write(l.part[:length]) // the reader reads to the end
}

// end returns the report on the log.
func (l *logReader) end() *why.Report {
	_ = l.parts.Close() // it has no error
	l.parts = nil
	return <-l.report
}

// root is a line that matters. Linked is true if the line's operation and status alone lead to the same causes, so that
// a link to the answer needs only the operation and the status.
type root struct {
	why.Root
	Linked bool `json:"linked"`
}

// report is why.Report with these roots.
type report struct {
	*why.Report
	Roots []root `json:"roots"`
}

func linked(from *why.Report) report {
	r := report{from, []root{}}
	for _, line := range from.Roots {
		alone := why.Answer(line.Operation, line.Status).Causes
		r.Roots = append(r.Roots, root{line, len(alone) > 0 && reflect.DeepEqual(alone, line.Causes)})
	}
	return r
}

// text returns a value as JSON. All types of this package can be encoded.
func text(value any) string {
	encoded, _ := json.Marshal(value)
	return string(encoded)
}
