// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/spec"
)

// lockMost bounds --lock: more than that no node has.
const lockMost = 1 << 44

func newVerifyCommand() *cobra.Command {
	var lock string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Inside a container, try what an RDMA program needs",
		Long: `Try, inside a container, what an RDMA program needs: say its memlock and whether CAP_IPC_LOCK is effective, open its verbs
devices and rdma_cm, and really lock memory, which the kernel allows or refuses as it does a memory registration: by memlock and
CAP_IPC_LOCK. Each fact is one line, and what would make RDMA fail says what to do about it.

The program is static: copy it into a container that runs, with kubectl cp, or mount it. It runs as a child of what called it, so with
kubectl exec it tells of the limits of an exec. The exit status is 1 if RDMA would fail.`,
		Example: `  rdma-spec verify
  kubectl exec train-0 -- rdma-spec verify --lock 1Gi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := spec.ParseLimit(lock)
			if err != nil || size > lockMost {
				return usageError{fmt.Errorf("--lock %q is no size up to 16Ti, such as 64Mi", lock)}
			}
			return verify(cmd.OutOrStdout(), thisContainer(), size)
		},
	}
	cmd.Flags().StringVar(&lock, "lock", "64Mi", "lock memory of this `SIZE`")
	return cmd
}

// container is what verify tries.
type container struct {
	root    string                            // where sys and dev are
	process func() (limits.Process, error)    // what it may lock
	open    func(path string) error           // a device
	lock    func(size int) error              // memory
	room    func() (bytes uint64, known bool) // of memory, within the container's limit
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

// openDevice opens a device as a program does that uses it. Opening alone does nothing to it.
func openDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// lockMemory locks that much memory, and lets go of it.
func lockMemory(size int) error {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }() // nothing is lost with it
	return unix.Mlock(memory)
}

// memoryRoom gives how much memory the container may still use, where a cgroup limits it: the process that uses more is killed.
func memoryRoom(cgroup string) (bytes uint64, known bool) {
	for _, files := range [][2]string{
		{"memory.max", "memory.current"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"},
	} {
		limit, limited := readNumber(filepath.Join(cgroup, files[0]))
		used, found := readNumber(filepath.Join(cgroup, files[1]))
		if limited && found {
			return limit - min(limit, used), true
		}
	}
	return 0, false
}

func readNumber(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	_, err = fmt.Sscanf(string(text), "%d\n", &n) // "max" is no number
	return n, err == nil
}

// verify writes a line for each fact.
func verify(w io.Writer, c container, size spec.Limit) error {
	v := verification{container: c}
	v.limits()
	v.devices()
	v.locking(size)
	for _, f := range v.facts {
		if _, err := fmt.Fprintf(w, "%-4s  %s\n", f.verdict, f.text); err != nil {
			return err
		}
	}
	if v.fails {
		return errProblemFound
	}
	return nil
}
