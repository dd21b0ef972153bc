// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limits reads and raises the RLIMIT_MEMLOCK of running processes. A raised limit applies from the process's
// next memory registration on.
//
// The package determines a process's container from /proc/PID/cgroup, since the cgroup's path contains the container's
// ID. The method works with cgroup v1 and v2, with both cgroup drivers, and inside a cgroup namespace. The method
// requires only /proc, in which the processes of other PID namespaces must be visible.
//
// The kernel can reuse a process ID at any time. While the package raises a process's limit, the package therefore
// holds a handle to the process: a pidfd, or the process's directory in /proc. If the limit of another process is
// raised nevertheless, the package restores that limit. Package policy decides which limit a container should have.
package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec"
)

// ErrHidden means that containers' processes are not visible.
var ErrHidden = errors.New("processes of other containers are not visible here: run this program on the node itself, " +
	"or in a pod with hostPID: true")

// These errors come from a Kernel.
var (
	// ErrGone means that a process has ended.
	ErrGone = errors.New("the process has ended")
	// ErrThread means that a process has ended and its ID was reused for a thread.
	ErrThread = fmt.Errorf("%w: a thread now has its ID", ErrGone)
)

// Processes reads and changes a node's processes.
type Processes struct{ kernel Kernel }

// New returns the processes that the proc file system below a root shows. The root is "/" for the node itself. New does
// not read any files.
func New(root string) *Processes { return On(proc{filepath.Join(root, "proc")}) }

// On returns the processes that a kernel shows.
func On(k Kernel) *Processes { return &Processes{k} }

// PIDs returns the IDs of all processes in ascending order.
func (p *Processes) PIDs() ([]int, error) { return p.kernel.PIDs() }

// Process describes how much memory a process can lock.
type Process struct {
	Memlock spec.Rlimit // RLIMIT_MEMLOCK
	Files   spec.Rlimit // RLIMIT_NOFILE; zero if unknown
	// IPCLock means that the process has CAP_IPC_LOCK in its effective set. In a user namespace other than the node's, the
	// capability has no effect on RDMA.
	IPCLock bool
	// UserNamespace means that the process is in a user namespace other than the node's.
	UserNamespace bool
	// Raises means that the process can raise hard limits, because the process has CAP_SYS_RESOURCE in the node's user
	// namespace.
	Raises bool
}

// Registers returns how much memory the kernel allows the process to register. With CAP_IPC_LOCK in the node's user
// namespace, the amount is unlimited. Without CAP_IPC_LOCK, the amount is the process's soft limit.
func (p Process) Registers() spec.Limit {
	if p.IPCLock && !p.UserNamespace {
		return spec.Unlimited
	}
	return p.Memlock.Soft
}

// Process reads how much memory a process can lock.
func (p *Processes) Process(pid int) (Process, error) {
	text, err := p.limits(pid)
	if err != nil {
		return Process{}, err
	}
	limit, err := parseLimit(text, memlockLine)
	if err != nil {
		return Process{}, fmt.Errorf("/proc/%d/limits: %w", pid, err)
	}
	files, _ := parseLimit(text, "Max open files ") // unknown if the line is missing
	status, err := p.kernel.Read(pid, "status")
	if err != nil {
		return Process{}, err
	}
	effective, err := numberAfter(status, "CapEff:", 16, 64)
	if err != nil {
		return Process{}, fmt.Errorf("/proc/%d/status: %w", pid, err)
	}
	own := p.userNamespace(pid)
	return Process{
		Memlock:       limit,
		Files:         files,
		IPCLock:       effective&(1<<unix.CAP_IPC_LOCK) != 0,
		UserNamespace: own,
		Raises:        effective&(1<<unix.CAP_SYS_RESOURCE) != 0 && !own,
	}, nil
}

// Startable returns the highest memlock with which the runtime with this PID can start a container. If the runtime
// cannot raise hard limits, the result is the runtime's own hard limit. PID 0 means that the runtime is in another PID
// namespace. With PID 0, Startable finds the runtime by its name. If Startable cannot find the runtime, the error is
// ErrNoRuntime.
func (p *Processes) Startable(runtime int) (spec.Limit, error) {
	if runtime == 0 {
		return p.startableByName()
	}
	process, err := p.Process(runtime)
	switch {
	case err != nil:
		return 0, err
	case process.Raises:
		return spec.Unlimited, nil
	}
	return process.Memlock.Hard, nil
}

// ErrNoRuntime means that the container runtime's process was not found.
var ErrNoRuntime = errors.New("the container runtime's process cannot be identified: either no process " +
	"is named containerd or crio, or several such processes have different limits")

// startableByName returns the limit of the node's runtimes if all runtimes have the same limit. startableByName ignores
// containers' processes, since these processes can have any name.
func (p *Processes) startableByName() (most spec.Limit, err error) {
	pids, err := p.kernel.PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		comm, err := p.kernel.Read(pid, "comm")
		if err != nil || string(comm) != "containerd\n" && string(comm) != "crio\n" {
			continue
		}
		if cgroup, err := p.kernel.Read(pid, "cgroup"); err != nil || containerOf(cgroup) != "" {
			continue
		}
		limit, err := p.Startable(pid)
		if err != nil {
			return 0, err
		}
		if most != 0 && limit != most {
			return 0, ErrNoRuntime
		}
		most = limit
	}
	if most == 0 {
		return 0, ErrNoRuntime
	}
	return most, nil
}

// firstUserNamespace is the target of the link ns/user of a process in the kernel's first user namespace. The number of
// this namespace is fixed: PROC_USER_INIT_INO in include/linux/proc_ns.h.
const firstUserNamespace = "user:[4026531837]"

// userNamespace reports whether a process is in a user namespace other than the first one. If the link ns/user is not
// readable, userNamespace reads only the user mapping. Without the link, userNamespace mistakes a namespace that maps
// all users to themselves for the first user namespace.
func (p *Processes) userNamespace(pid int) bool {
	if link, err := p.kernel.Read(pid, "ns/user"); err == nil {
		return string(link) != firstUserNamespace
	}
	uids, err := p.kernel.Read(pid, "uid_map") // missing if the kernel has no user namespaces
	return err == nil && !allUIDs(uids)
}

// Memlock returns a process's RLIMIT_MEMLOCK.
func (p *Processes) Memlock(pid int) (spec.Rlimit, error) {
	text, err := p.limits(pid)
	if err != nil {
		return spec.Rlimit{}, err
	}
	limit, err := parseLimit(text, memlockLine)
	if err != nil {
		return spec.Rlimit{}, fmt.Errorf("/proc/%d/limits: %w", pid, err)
	}
	return limit, nil
}

// MemlockIn returns a process's RLIMIT_MEMLOCK if the process belongs to the container with the given ID.
func (p *Processes) MemlockIn(container string, pid int) (spec.Rlimit, error) {
	limit, err := p.Memlock(pid)
	if err == nil && !p.Belongs(pid, container) {
		err = fmt.Errorf("process %d does not belong to the container", pid)
	}
	return limit, err
}

// limits returns the text of /proc/PID/limits.
func (p *Processes) limits(pid int) ([]byte, error) {
	text, err := p.kernel.Read(pid, "limits")
	if err == nil && len(text) == 0 { // the process has ended, but its parent has not waited for it
		err = ErrGone
	}
	return text, err
}

// Containers returns the PIDs of each running container, by container ID.
func (p *Processes) Containers() (map[string][]int, error) {
	pids, err := p.kernel.PIDs()
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	for _, pid := range pids {
		text, err := p.kernel.Read(pid, "cgroup")
		if err != nil {
			continue // the process has ended
		}
		if id := containerOf(text); id != "" {
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}

// Newest returns the PID of a container that has just started, or 0 if the container has no process. Newest searches
// the node's processes for a process of the container, newest process first. With this order, Newest reads few files,
// unless process IDs have wrapped around.
func (p *Processes) Newest(container string) (int, error) {
	pids, err := p.kernel.PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range slices.Backward(pids) {
		if p.Belongs(pid, container) {
			return pid, nil
		}
	}
	return 0, nil
}

// Visible returns ErrHidden if containers' processes are not visible.
func (p *Processes) Visible() error {
	// Only the node's PID namespace has kernel threads.
	if comm, err := p.kernel.Read(2, "comm"); err == nil && string(comm) == "kthreadd\n" {
		return nil
	}
	own, err := p.kernel.Read(p.kernel.Self(), "cgroup")
	if err != nil {
		return nil // a copy of a node's proc
	}
	// In a container with its own PID namespace, PID 1 belongs to the same container, and no other containers' processes
	// are visible. A node of kind or k3d is also a container, but other containers run in this node.
	if first, err := p.kernel.Read(1, "cgroup"); err != nil || string(first) != string(own) {
		return nil
	}
	containers, err := p.Containers()
	delete(containers, containerOf(own))
	if err != nil || len(containers) == 0 {
		return ErrHidden
	}
	return nil
}

// Changeable returns nil if the process IDs are the IDs in this process's system calls. If the IDs differ, the error
// explains why.
func (p *Processes) Changeable() error { return p.kernel.Changeable() }

// Pause waits for a time, or until the context is done, while processes continue to run.
func (p *Processes) Pause(ctx context.Context, d time.Duration) { p.kernel.Pause(ctx, d) }

// memlockLine is the prefix of the RLIMIT_MEMLOCK line in /proc/PID/limits.
const memlockLine = "Max locked memory "

// parseLimit finds a limit in the text of /proc/PID/limits by the prefix of the limit's line.
func parseLimit(text []byte, line string) (spec.Rlimit, error) {
	values, err := lineAfter(text, line)
	if err != nil {
		return spec.Rlimit{}, err
	}
	fields := strings.Fields(values)
	if len(fields) < 2 {
		return spec.Rlimit{}, fmt.Errorf("%q: expected a soft and a hard limit", values)
	}
	soft, errSoft := parseBytes(fields[0])
	hard, errHard := parseBytes(fields[1])
	if err := cmp.Or(errSoft, errHard); err != nil {
		return spec.Rlimit{}, err
	}
	return spec.Rlimit{Soft: soft, Hard: hard}, nil
}

// lineAfter returns the rest of the first line that has a prefix.
func lineAfter(text []byte, prefix string) (string, error) {
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, prefix); found {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("no line for %s", strings.TrimRight(prefix, ": "))
}

func parseBytes(text string) (spec.Limit, error) {
	if text == "unlimited" {
		return spec.Unlimited, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return spec.LimitOf(n), err
}

// numberAfter returns the number that follows a prefix in the text.
func numberAfter(text []byte, prefix string, base, bits int) (uint64, error) {
	number, err := lineAfter(text, prefix)
	n, errNumber := strconv.ParseUint(number, base, bits)
	if err = cmp.Or(err, errNumber); err != nil {
		return 0, err // not n, which is the largest number after an overflow
	}
	return n, nil
}

// allUIDs reports whether the text of /proc/PID/uid_map maps every user to itself, as in the node's user namespace.
func allUIDs(text []byte) bool {
	return strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}
