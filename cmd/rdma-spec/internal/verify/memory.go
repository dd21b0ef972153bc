// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
)

// openDevice opens a device like an RDMA program. Opening a device does not change its state.
func openDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// withMemory calls a function with memory of the given size, and then frees the memory.
func withMemory(size int, do func(memory []byte) error) error {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }() // an error loses no data
	return do(memory)
}

// registerMemory registers memory of the given size with the HCA of a verbs device.
func registerMemory(path string, driver verbs.Driver, size int) error {
	context, err := verbs.Open(path, driver)
	if err != nil {
		return err
	}
	return errors.Join(withMemory(size, context.Register), context.Close())
}

// memoryFiles are the memory files of cgroup v2 and cgroup v1.
var memoryFiles = []struct{ limit, used, stat, cache string }{
	{"memory.max", "memory.current", "memory.stat", "inactive_file"},
	{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"},
}

// room returns the amount of memory that the container can still use. known is false without a cgroup limit. A process
// that uses more memory is killed. Page cache and kernel memory that the kernel reclaims first do not count as used.
func (v *verification) room() (bytes uint64, known bool) {
	const cgroup = "sys/fs/cgroup/"
	for _, files := range memoryFiles {
		limit, err := strconv.ParseUint(v.read(cgroup+files.limit), 10, 64) // "max" is not a number
		used, missing := strconv.ParseUint(v.read(cgroup+files.used), 10, 64)
		if err != nil || missing != nil {
			continue
		}
		for line := range strings.Lines(v.read(cgroup + files.stat)) { // if unreadable, all memory counts as used
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseUint(text, 10, 64); err == nil && (name == files.cache || name == "slab_reclaimable") {
				used -= min(used, n)
			}
		}
		return limit - min(limit, used), true
	}
	return 0, false
}
