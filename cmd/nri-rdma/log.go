// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/internal/journal"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
)

const (
	// linesKept is the number of lines that are buffered while the log blocks.
	linesKept = 1000
	// flushWithin is the longest time that the program waits for the log before it exits.
	flushWithin = 200 * time.Millisecond
)

// logOutput returns the log's destination. A runtime discards the output of a plugin that it launched. If the node has
// a journal, a launched plugin logs to the journal (journalctl -t nri-rdma).
func logOutput() io.Writer {
	if registration.Launched() && journal.Enabled() {
		return journal.New("nri-rdma")
	}
	return os.Stderr
}

// patientLog passes lines to a writer that can block or fail, such as an unread pipe, a hanging journal, or a full
// disk. Callers of Write never wait, since the node's containers wait for these callers. patientLog counts the lines
// that do not fit into the buffer, and logs the count later.
type patientLog struct {
	to    io.Writer
	lines chan []byte
	ended chan struct{}
	lost  atomic.Int64
}

func newPatientLog(to io.Writer) *patientLog {
	l := &patientLog{to: to, lines: make(chan []byte, linesKept), ended: make(chan struct{})}
	go l.write()
	return l
}

// Write implements io.Writer for one line. Write never fails.
func (l *patientLog) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte{}, line...): // never nil, since nil marks the end
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

func (l *patientLog) write() {
	defer close(l.ended)
	for line := <-l.lines; line != nil; line = <-l.lines {
		if _, err := l.to.Write(line); err != nil {
			l.lost.Add(1)
		} else if lost := l.lost.Swap(0); lost > 0 {
			// an error here loses only the count
			_, _ = fmt.Fprintf(l.to, "nri-rdma: log lines lost while the log could not be written: %d\n", lost)
		}
	}
}

// Close writes the buffered lines, unless the log blocks for longer than flushWithin.
func (l *patientLog) Close() {
	late := time.After(flushWithin)
	select {
	case l.lines <- nil: // the last element
		select {
		case <-l.ended:
		case <-late:
		}
	case <-late:
	}
}
