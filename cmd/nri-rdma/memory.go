// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// collectOften is the percentage of garbage at which memory is collected: a daemon on every node saves memory before time.
const collectOften = 50

// saveMemory keeps the program small. Where the kernel gives huge pages unasked, a heap of two megabytes takes six; so it gives none
// from here on, and takes back what the start has left unused.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectOften)
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) // without it the program is larger, and no worse
	debug.FreeOSMemory()
}
