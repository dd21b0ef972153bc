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

// openDevice opens a device as a program that uses it does. Opening alone does nothing to the device.
func openDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// withMemory calls a function with memory of a size, which is freed afterwards.
func withMemory(size int, do func(memory []byte) error) error {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }() // nothing is lost with it
	return do(memory)
}

// registerMemory registers memory of a size with the HCA of a verbs device.
func registerMemory(path string, driver verbs.Driver, size int) error {
	context, err := verbs.Open(path, driver)
	if err != nil {
		return err
	}
	return errors.Join(withMemory(size, context.Register), context.Close())
}

// memoryFiles are a cgroup's files on memory, in version 2 and in version 1 of cgroups.
var memoryFiles = []struct{ limit, used, stat, cache string }{
	{"memory.max", "memory.current", "memory.stat", "inactive_file"},
	{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"},
}

// room returns how much memory the container may still use, where a cgroup limits it: a process that uses more is
// killed. Page cache and kernel memory that the kernel reclaims first are not in use.
func (v *verification) room() (bytes uint64, known bool) {
	const cgroup = "sys/fs/cgroup/"
	for _, files := range memoryFiles {
		limit, err := strconv.ParseUint(v.read(cgroup+files.limit), 10, 64) // "max" is not a number
		used, missing := strconv.ParseUint(v.read(cgroup+files.used), 10, 64)
		if err != nil || missing != nil {
			continue
		}
		for line := range strings.Lines(v.read(cgroup + files.stat)) { // without it, all memory counts as used
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseUint(text, 10, 64); err == nil && (name == files.cache || name == "slab_reclaimable") {
				used -= min(used, n)
			}
		}
		return limit - min(limit, used), true
	}
	return 0, false
}
