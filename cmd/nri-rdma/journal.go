// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"github.com/rdma-spec/rdma-spec/cmd/internal/journal"
	"github.com/rdma-spec/rdma-spec/plugin/registration"
)

// logOutput gives what the log is written to. A runtime discards what a plugin that it launched writes, so that one
// logs to the node's journal, if there is one: journalctl -t nri-rdma.
func logOutput() io.Writer {
	if registration.Launched() && journal.Enabled() {
		return journal.New("nri-rdma")
	}
	return os.Stderr
}
