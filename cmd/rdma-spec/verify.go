// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// lockMost bounds --lock: no node has more memory.
const lockMost = 1 << 44

func newVerifyCommand() *cobra.Command {
	var lock string
	var format *formatFlag
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Try, inside a container, what an RDMA program needs",
		Long: `Try, inside a container, what an RDMA program needs: read its memlock and CAP_IPC_LOCK, open
its verbs devices and rdma_cm, and lock memory. The kernel allows or refuses that as it does a
memory registration: by memlock and CAP_IPC_LOCK. Each fact is one line. A line that begins
with FAIL says what makes RDMA fail and what to do about it.

The program is static: copy it into a running container with kubectl cp, or mount it. It has
the limits of its parent, so with kubectl exec it shows the limits of an exec.

The exit status is 1 if RDMA would fail.`,
		Example: `  rdma-spec verify
  kubectl exec train-0 -- rdma-spec verify --lock 1Gi`,
		Args:    cobra.NoArgs,
		GroupID: groupPod,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := spec.ParseLimit(lock)
			if err != nil || size > lockMost {
				return usageError{fmt.Errorf("--lock %q is not a size up to 16Ti, such as 64Mi", lock)}
			}
			return verify(cmd.OutOrStdout(), thisContainer(), size, format.format)
		},
	}
	cmd.Flags().StringVar(&lock, "lock", "64Mi", "lock memory of this `SIZE`")
	format = addFormatFlag(cmd, formatText, formatJSON, formatYAML)
	return cmd
}

// container is what verify tries.
type container struct {
	root    string                            // where sys and dev are
	process func() (limits.Process, error)    // what it may lock
	open    func(path string) error           // opens a device
	lock    func(size int) error              // locks memory
	room    func() (bytes uint64, known bool) // how much memory is left within the container's limit
}

func thisContainer() container {
	return container{
		root:    "/",
		process: func() (limits.Process, error) { return limits.New("/").Process(os.Getpid()) },
		open:    openDevice,
		lock:    lockMemory,
		room:    func() (uint64, bool) { return memoryRoom("/sys/fs/cgroup") },
	}
}

// openDevice opens a device as a program that uses it does. Opening alone does nothing to the device.
func openDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// lockMemory locks memory of a size, and frees it.
func lockMemory(size int) error {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }() // nothing is lost with it
	return unix.Mlock(memory)
}

// memoryFiles are a cgroup's files on memory, in version 2 and in version 1 of cgroups.
var memoryFiles = []struct{ limit, used, stat, cache string }{
	{"memory.max", "memory.current", "memory.stat", "inactive_file"},
	{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"},
}

// memoryRoom returns how much memory the container may still use, where a cgroup limits it: a process that uses more is killed. Page cache
// and kernel memory that the kernel reclaims first are not in use.
func memoryRoom(cgroup string) (bytes uint64, known bool) {
	for _, files := range memoryFiles {
		limit, limited := readNumber(filepath.Join(cgroup, files.limit))
		used, found := readNumber(filepath.Join(cgroup, files.used))
		if !limited || !found {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(cgroup, files.stat)) // without it, all memory counts as used
		for line := range strings.Lines(string(text)) {
			var name string
			var n uint64
			if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err == nil && (name == files.cache || name == "slab_reclaimable") {
				used -= min(used, n)
			}
		}
		return limit - min(limit, used), true
	}
	return 0, false
}

func readNumber(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	_, err = fmt.Sscanf(string(text), "%d\n", &n) // "max" is not a number
	return n, err == nil
}

// verify tries a container and writes what it found.
func verify(w io.Writer, c container, size spec.Limit, format string) error {
	v := verification{container: c}
	v.APIVersion = apiVersion
	v.limits()
	v.devices()
	v.locking(size)
	err := v.write(w, format)
	if err == nil && v.Fails {
		return errProblemFound
	}
	return err
}

func (v *verification) write(w io.Writer, format string) error {
	if format != formatText {
		return writeStructured(w, format, v.verified)
	}
	for _, f := range v.Facts {
		if _, err := fmt.Fprintf(w, "%-4s  %s\n", shown[f.Verdict], f.Text); err != nil {
			return err
		}
	}
	return nil
}
