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
	// linesKept is how many lines are buffered while the log blocks.
	linesKept = 1000
	// flushWithin is how long the program waits for the log when it ends.
	flushWithin = 200 * time.Millisecond
)

// logOutput returns the log's destination. A runtime discards the output of a plugin that it launched, so such a plugin
// logs to the node's journal, if there is one: journalctl -t nri-rdma.
func logOutput() io.Writer {
	if registration.Launched() && journal.Enabled() {
		return journal.New("nri-rdma")
	}
	return os.Stderr
}

// patientLog passes lines to a writer that may block or fail: a pipe that nobody reads, a journal that hangs, or a full
// disk. Its callers never wait, since the node's containers wait for them. Lines that do not fit into the buffer are
// counted, and the count is logged later.
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

// Write implements io.Writer, for one line. It never fails.
func (l *patientLog) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte{}, line...): // never nil, which marks the end
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
			// these lines are lost
			_, _ = fmt.Fprintf(l.to, "nri-rdma: %d log lines were lost while the log could not be written\n", lost)
		}
	}
}

// Close writes the buffered lines, if the log accepts them.
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
