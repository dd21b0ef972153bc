// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// collectAt is the percentage of garbage at which Go collects memory. By default, a small program's heap grows to 4 MB
// before a collection, and a collection delays some requests. nri-rdma keeps more data in memory than a plugin that
// does nothing, so less of the 4 MB is left for requests. With a heap of 5.6 MB, collections are as rare as in a plugin
// that does nothing, at the cost of 1.6 MB of memory.
const collectAt = 140

// memoryEnough is more memory than the program needs, except during a registration. During a registration, Go collects
// memory more often, since the runtime can list hundreds of megabytes of containers.
const memoryEnough = 40 << 20

// saveMemory reduces the memory that the program uses. saveMemory turns off transparent huge pages, with which a heap
// of 2 MB occupies 6 MB. saveMemory also returns memory that is unused after startup to the kernel.
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
