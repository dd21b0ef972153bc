// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"regexp"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/rdma-spec/rdma-spec/plugin/registration"
)

// logOutput gives what the log is written to. A runtime discards what a plugin that it launched writes, so that one logs to the node's
// journal, if there is one: journalctl -t nri-rdma.
func logOutput() io.Writer {
	if registration.Launched() && journal.Enabled() {
		return journalLog{journal.Send}
	}
	return os.Stderr
}

// journalLog sends each line to the journal.
type journalLog struct {
	send func(message string, priority journal.Priority, fields map[string]string) error
}

// level finds the level in a line, text or JSON.
var level = regexp.MustCompile(`\blevel"?[=:]"?([a-z]+)`)

var priorities = map[string]journal.Priority{
	"debug": journal.PriDebug, "info": journal.PriInfo, "warning": journal.PriWarning, "error": journal.PriErr,
}

// Write sends a line. A line without a level has the priority of info.
func (l journalLog) Write(line []byte) (int, error) {
	priority := journal.PriInfo
	if match := level.FindSubmatch(line); match != nil {
		if p, ok := priorities[string(match[1])]; ok {
			priority = p
		}
	}
	if err := l.send(string(bytes.TrimSuffix(line, []byte("\n"))), priority, map[string]string{"SYSLOG_IDENTIFIER": "nri-rdma"}); err != nil {
		return 0, err
	}
	return len(line), nil
}
