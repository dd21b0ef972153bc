// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package journal writes lines to the node's journal. It is for programs that a runtime launches, because the runtime
// discards their output.
package journal

import (
	"bytes"
	"regexp"

	"github.com/coreos/go-systemd/v22/journal"
)

// Enabled reports whether the node has a journal.
func Enabled() bool { return journal.Enabled() }

// Log sends each line to the journal with a program's name. To show the lines, run journalctl -t PROGRAM.
type Log struct {
	program string
	send    func(message string, priority journal.Priority, fields map[string]string) error
}

// New returns the log of a program.
func New(program string) Log { return Log{program, journal.Send} }

// level matches the level in a line of text or JSON.
var level = regexp.MustCompile(`\blevel"?[=:]"?([a-z]+)`)

var priorities = map[string]journal.Priority{
	"debug": journal.PriDebug, "info": journal.PriInfo, "warning": journal.PriWarning, "error": journal.PriErr,
}

// Write sends a line of a log. A line without a level has the priority info.
func (l Log) Write(line []byte) (int, error) {
	priority := journal.PriInfo
	if match := level.FindSubmatch(line); match != nil {
		if p, ok := priorities[string(match[1])]; ok {
			priority = p
		}
	}
	if err := l.line(string(bytes.TrimSuffix(line, []byte("\n"))), priority); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Error sends a line with the priority error.
func (l Log) Error(line string) error { return l.line(line, journal.PriErr) }

func (l Log) line(text string, priority journal.Priority) error {
	return l.send(text, priority, map[string]string{"SYSLOG_IDENTIFIER": l.program})
}
