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
	// linesKept is how many lines wait for a log that blocks.
	linesKept = 1000
	// flushWithin is how long the program's end may wait for such a log.
	flushWithin = 200 * time.Millisecond
)

// logOutput gives what the log is written to. A runtime discards what a plugin that it launched writes, so that one
// logs to the node's journal, if there is one: journalctl -t nri-rdma.
func logOutput() io.Writer {
	if registration.Launched() && journal.Enabled() {
		return journal.New("nri-rdma")
	}
	return os.Stderr
}

// patientLog passes lines on to a writer that may block or fail: a pipe that nobody reads, a journal that hangs, a full
// disk. Its callers never wait, since the node's containers wait for them. Lines that do not fit are counted, and the
// log reports their number later.
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
	case l.lines <- append([]byte{}, line...): // never nil, which is the end
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
			// they stay lost
			_, _ = fmt.Fprintf(l.to, "nri-rdma: %d log lines were lost while the log could not be written\n", lost)
		}
	}
}

// Close writes what is left, if the log takes it.
func (l *patientLog) Close() {
	late := time.After(flushWithin)
	select {
	case l.lines <- nil: // no line comes behind it
		select {
		case <-l.ended:
		case <-late:
		}
	case <-late:
	}
}
