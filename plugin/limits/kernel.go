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

// Kernel is the part of the kernel that reads and changes processes. Tests use limitstest instead.
type Kernel interface {
	// PIDs returns the IDs of all processes, ascending.
	PIDs() ([]int, error)
	// Read returns the text of a file in /proc/PID, or the target of a link in its ns directory.
	Read(pid int, name string) ([]byte, error)
	// Self returns the ID of this process in /proc.
	Self() int
	// Changeable returns why processes cannot be changed by the IDs in /proc; nil if they can.
	Changeable() error
	// Open opens a handle to a process. The error is ErrGone if there is no such process, and ErrThread if the ID is a
	// thread's.
	Open(pid int) (Holder, error)
	// Set sets the RLIMIT_MEMLOCK of a process, or of a thread's process, and returns the former limit. The error is
	// ErrGone if there is no such process.
	Set(pid int, limit spec.Rlimit) (former spec.Rlimit, err error)
	// Pause lets processes go on for a time, or until the context is done.
	Pause(ctx context.Context, d time.Duration)
}

// Holder is a handle to one process, even if its ID is reused.
type Holder interface {
	// Holds reports whether the process still has its ID: it is running, or has not been waited for. Until then, no other
	// process can have the ID.
	Holds() bool
	Close()
}

// proc is this node's kernel. The proc file system at a path lists the processes.
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

// Self implements Kernel; it returns 0 if proc does not show this process.
func (p proc) Self() int {
	name, _ := os.Readlink(filepath.Join(p.path, "self"))
	pid, _ := strconv.Atoi(name)
	return pid
}

// Changeable rejects a proc whose process IDs differ from those of this process's system calls: a copy of another
// node's, or the proc of another PID namespace.
func (p proc) Changeable() error {
	if status, err := p.Read(p.Self(), "status"); err == nil {
		// One ID for each PID namespace, from that of the proc mount to the process's own.
		if ids, err := lineAfter(status, "NSpid:"); err == nil && ids == strconv.Itoa(os.Getpid()) {
			return nil
		}
	}
	return fmt.Errorf("%s belongs to another PID namespace: run on the node itself, or in a pod with hostPID: true",
		p.path)
}

// Open implements Kernel. It uses a pidfd if the kernel supports pidfds.
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

// openDir opens a process's directory in /proc, which stays that process's directory while it is open.
func (p proc) openDir(pid int) (Holder, error) {
	fd, err := unix.Open(p.file(pid, ""), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("opening the directory of process %d: %w", pid, err)
	}
	if of, err := On(p).processOf(pid); err == nil && of != pid {
		_ = unix.Close(fd) // it was not used
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
		return former, fmt.Errorf("setting RLIMIT_MEMLOCK of process %d: %w: this needs CAP_SYS_RESOURCE in the "+
			"initial user namespace", pid, err)
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
	ask func(fd int) error // its error satisfies ended once the process was waited for
}

// askPidfd sends signal 0. If AppArmor, for example, does not allow that, the process exists.
func askPidfd(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) }

// askDir looks for a file, since the directory is empty once the process was waited for.
func askDir(fd int) error { return unix.Faccessat(fd, "status", unix.F_OK, 0) }

// Holds implements Holder.
func (h held) Holds() bool { return !isGone(h.ask(h.fd)) }

// Close implements Holder.
func (h held) Close() { _ = unix.Close(h.fd) }

// isGone reports whether an error from a process's directory means that the process does not exist.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }
