// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// collectAt is the percentage of garbage at which Go collects memory. By default, a small program's heap grows to 4 MB
// before a collection, which slows some requests down. This program keeps more in memory than a plugin that does
// nothing, so less of the 4 MB is left for requests. With 5.6 MB, collections are as rare as in such a plugin, for 1.6
// MB more memory.
const collectAt = 140

// memoryEnough is more memory than the program needs except when it registers. It then collects more often, since the
// runtime may list hundreds of megabytes of containers.
const memoryEnough = 40 << 20

// saveMemory keeps the program small. With transparent huge pages, a heap of 2 MB takes 6 MB, so it turns them off, and
// returns the memory that startup left unused.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryEnough)
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) // if this fails, the program only needs more memory
	debug.FreeOSMemory()
}
