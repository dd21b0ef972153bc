// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Kernel is the part of the kernel that reads and changes processes. Tests use the kernel of package limitstest
// instead.
type Kernel interface {
	// PIDs returns the IDs of all processes in ascending order.
	PIDs() ([]int, error)
	// Read returns the text of a file in /proc/PID, or the target of a link in its ns directory.
	Read(pid int, name string) ([]byte, error)
	// Self returns the ID of this process in /proc.
	Self() int
	// Changeable returns nil if the IDs in /proc can be used to change processes. If the IDs cannot be used, the error
	// explains why.
	Changeable() error
	// Open opens a handle to a process. The error is ErrGone if the process does not exist, and ErrThread if the ID
	// belongs to a thread.
	Open(pid int) (Holder, error)
	// Set sets the RLIMIT_MEMLOCK of a process, or of a thread's process, and returns the former limit. The error is
	// ErrGone if the process does not exist.
	Set(pid int, limit spec.Rlimit) (former spec.Rlimit, err error)
	// Pause waits for a time, or until the context is done, while processes continue to run.
	Pause(ctx context.Context, d time.Duration)
}

// Holder is a handle to one process, even if the ID of the process is reused.
type Holder interface {
	// Holds reports whether the process still has its ID. A process has its ID until the process has ended and its parent
	// has waited for it. While Holds returns true, no other process can have the ID.
	Holds() bool
	Close()
}

// proc is this node's kernel. The proc file system at the path lists the processes.
type proc struct{ path string }

// PIDs implements Kernel.
func (p proc) PIDs() ([]int, error) {
	dir, err := os.Open(p.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

func (p proc) file(pid int, name string) string {
	return filepath.Join(p.path, strconv.Itoa(pid), name)
}

// Read implements Kernel.
func (p proc) Read(pid int, name string) ([]byte, error) {
	if strings.HasPrefix(name, "ns/") {
		to, err := os.Readlink(p.file(pid, name))
		return []byte(to), err
	}
	return os.ReadFile(p.file(pid, name))
}

// Self implements Kernel. Self returns 0 if proc does not show this process.
func (p proc) Self() int {
	name, _ := os.Readlink(filepath.Join(p.path, "self"))
	pid, _ := strconv.Atoi(name)
	return pid
}

// Changeable rejects a proc file system whose process IDs differ from the IDs in this process's system calls: a copy of
// another node's proc, or the proc of another PID namespace.
func (p proc) Changeable() error {
	if status, err := p.Read(p.Self(), "status"); err == nil {
		// NSpid contains one ID for each PID namespace, from the namespace of the proc mount to the process's own namespace.
		if ids, err := lineAfter(status, "NSpid:"); err == nil && ids == strconv.Itoa(os.Getpid()) {
			return nil
		}
	}
	return fmt.Errorf("%s belongs to another PID namespace: run this program on the node itself, or in a pod with "+
		"hostPID: true", p.path)
}

// Open implements Kernel. Open uses a pidfd if the kernel supports pidfds.
func (p proc) Open(pid int) (Holder, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, ErrGone
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // from Linux 6.1 and 6.18, respectively
		return nil, ErrThread
	case errors.Is(err, unix.ENOSYS): // before Linux 5.3
		return p.openDir(pid)
	case err != nil:
		return nil, fmt.Errorf("pidfd_open of process %d: %w", pid, err)
	}
	return held{fd, askPidfd}, nil
}

// openDir opens a process's directory in /proc. While the directory is open, the handle refers to the same process.
func (p proc) openDir(pid int) (Holder, error) {
	fd, err := unix.Open(p.file(pid, ""), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("opening the directory of process %d: %w", pid, err)
	}
	if of, err := On(p).processOf(pid); err == nil && of != pid {
		_ = unix.Close(fd) // the descriptor was not used
		return nil, ErrThread
	}
	return held{fd, askDir}, nil
}

// Set implements Kernel.
func (proc) Set(pid int, limit spec.Rlimit) (former spec.Rlimit, err error) {
	var old unix.Rlimit
	err = unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: uint64(limit.Soft), Max: uint64(limit.Hard)}, &old)
	former = spec.Rlimit{Soft: spec.Limit(old.Cur), Hard: spec.Limit(old.Max)}
	switch {
	case errors.Is(err, unix.ESRCH):
		return former, ErrGone
	case errors.Is(err, unix.EPERM):
		return former, fmt.Errorf("setting RLIMIT_MEMLOCK of process %d: %w: this change needs CAP_SYS_RESOURCE "+
			"in the initial user namespace", pid, err)
	case err != nil:
		return former, fmt.Errorf("setting RLIMIT_MEMLOCK of process %d: %w", pid, err)
	}
	return former, nil
}

// Pause implements Kernel.
func (proc) Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// held is a handle with a descriptor: a pidfd, or the process's directory in /proc.
type held struct {
	fd  int
	ask func(fd int) error // its error satisfies isGone once the parent has waited for the process
}

// askPidfd sends signal 0. If AppArmor, for example, denies the signal, the process exists.
func askPidfd(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) }

// askDir checks for a file, since the directory is empty once the parent has waited for the process.
func askDir(fd int) error { return unix.Faccessat(fd, "status", unix.F_OK, 0) }

// Holds implements Holder.
func (h held) Holds() bool { return !isGone(h.ask(h.fd)) }

// Close implements Holder.
func (h held) Close() { _ = unix.Close(h.fd) }

// isGone reports whether an error from a process's directory means that the process does not exist.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }
