// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limits reads and raises RLIMIT_MEMLOCK of processes that run, as it is in force: a raised limit counts from
// the process's next registration of memory on.
//
// Which processes are a container's is read from /proc/PID/cgroup, whose path bears the container's ID: that holds for
// cgroup v1 and v2, for both cgroup drivers, also from within a cgroup namespace, and needs nothing mounted but /proc.
// The processes of other PID namespaces must be visible in it.
//
// A process ID is not a process: it may be another's a moment later. What is raised is held meanwhile, by a pidfd or by
// its directory in /proc, and a stranger that is raised all the same is set back. Who should have how much is known to
// package policy.
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

// ErrHidden means that the processes of containers cannot be seen.
var ErrHidden = errors.New("processes of other containers are not visible here: run on the node itself, or in a pod " +
	"with hostPID: true")

// Errors of a Kernel.
var (
	// ErrGone means that a process has ended.
	ErrGone = errors.New("the process has ended")
	// ErrThread means that a process has ended, and that its ID has become that of a thread.
	ErrThread = fmt.Errorf("%w: a thread now has the process's ID", ErrGone)
)

// Processes are the processes of a node.
type Processes struct{ kernel Kernel }

// New returns the processes that the proc below a root shows: "/" for the node itself. Nothing is read yet.
func New(root string) *Processes { return On(proc{filepath.Join(root, "proc")}) }

// On returns the processes of a kernel.
func On(k Kernel) *Processes { return &Processes{k} }

// PIDs returns the IDs of all processes, ascending.
func (p *Processes) PIDs() ([]int, error) { return p.kernel.PIDs() }

// Process is what a process may lock, and why.
type Process struct {
	Memlock spec.Rlimit // RLIMIT_MEMLOCK
	Files   spec.Rlimit // RLIMIT_NOFILE; zero where it is unknown
	// IPCLock: it has CAP_IPC_LOCK in its effective set. In a user namespace other than the node's that is of no use for
	// RDMA.
	IPCLock bool
	// UserNamespace: it runs in a user namespace other than the node's.
	UserNamespace bool
	// Raises: it may raise hard limits, since it has CAP_SYS_RESOURCE in the node's user namespace.
	Raises bool
}

// Registers returns how much memory the process can register, as the kernel counts: all of it with CAP_IPC_LOCK in the
// node's user namespace, else its soft limit.
func (p Process) Registers() spec.Limit {
	if p.IPCLock && !p.UserNamespace {
		return spec.Unlimited
	}
	return p.Memlock.Soft
}

// Process reads what a process may lock.
func (p *Processes) Process(pid int) (Process, error) {
	text, err := p.limits(pid)
	if err != nil {
		return Process{}, err
	}
	limit, err := parseLimit(text, memlockLine)
	if err != nil {
		return Process{}, fmt.Errorf("/proc/%d/limits: %w", pid, err)
	}
	files, _ := parseLimit(text, "Max open files ") // without it, it is unknown
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

// Startable returns the highest memlock of a container that a runtime, given by its process, can start: where it may
// not raise hard limits, its own. A runtime that is given by 0, since it is in another PID namespace, is found by its
// name, and the error is ErrNoRuntime where that is not enough.
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

// ErrNoRuntime means that the process of the container runtime is not found.
var ErrNoRuntime = errors.New("the container runtime's process cannot be identified: no process is called " +
	"containerd or crio, or several are and their limits differ")

// startableByName is Startable of the node's runtimes, if all say the same. Processes of containers can have any name.
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

// firstUserNamespace is where the link ns/user of a process leads in the kernel's first user namespace, whose number is
// fixed: PROC_USER_INIT_INO of include/linux/proc_ns.h.
const firstUserNamespace = "user:[4026531837]"

// userNamespace reports whether a process runs in another user namespace than the first one. Who may not read the link
// sees only whom the process's users are: one that maps all to themselves counts as the first.
func (p *Processes) userNamespace(pid int) bool {
	if link, err := p.kernel.Read(pid, "ns/user"); err == nil {
		return string(link) != firstUserNamespace
	}
	uids, err := p.kernel.Read(pid, "uid_map") // a kernel without user namespaces has no such file
	return err == nil && !allUIDs(uids)
}

// Memlock reads RLIMIT_MEMLOCK of a process.
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

// MemlockIn reads RLIMIT_MEMLOCK of a process, if that is one of a container's, given by its ID.
func (p *Processes) MemlockIn(container string, pid int) (spec.Rlimit, error) {
	limit, err := p.Memlock(pid)
	if err == nil && !p.Belongs(pid, container) {
		err = fmt.Errorf("process %d does not belong to the container", pid)
	}
	return limit, err
}

// limits reads the text of /proc/PID/limits.
func (p *Processes) limits(pid int) ([]byte, error) {
	text, err := p.kernel.Read(pid, "limits")
	if err == nil && len(text) == 0 { // as it is between a process's end and its being waited for
		err = ErrGone
	}
	return text, err
}

// Containers returns the IDs of the processes of each container that has some, by the container's ID.
func (p *Processes) Containers() (map[string][]int, error) {
	pids, err := p.kernel.PIDs()
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	for _, pid := range pids {
		text, err := p.kernel.Read(pid, "cgroup")
		if err != nil {
			continue // it has ended
		}
		if id := containerOf(text); id != "" {
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}

// Newest returns a process of a container that has just started: of the newest processes of the node, the first that is
// the container's. It reads few files, unless process IDs have wrapped around. 0: no process is the container's.
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

// Visible reports whether the processes of containers can be seen: ErrHidden if not.
func (p *Processes) Visible() error {
	// Only the node's own PID namespace has kernel threads.
	if comm, err := p.kernel.Read(2, "comm"); err == nil && string(comm) == "kthreadd\n" {
		return nil
	}
	own, err := p.kernel.Read(p.kernel.Self(), "cgroup")
	if err != nil {
		return nil // a copy of some node's proc
	}
	// In a container with a PID namespace of its own, PID 1 is of the same container, and no other container has
	// processes. A node of kind or k3d is a container, too, and others run in it.
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

// Changeable says why the process IDs are not those that this process's system calls mean: nil where they are.
func (p *Processes) Changeable() error { return p.kernel.Changeable() }

// Pause lets processes go on for a time, or until the context is done.
func (p *Processes) Pause(ctx context.Context, d time.Duration) { p.kernel.Pause(ctx, d) }

// memlockLine begins the line of RLIMIT_MEMLOCK in /proc/PID/limits.
const memlockLine = "Max locked memory "

// parseLimit finds a limit in the text of /proc/PID/limits by how its line begins.
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

// lineAfter returns what follows a prefix in the first line that has it.
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

// numberAfter reads the number that follows a prefix, as lineAfter finds it.
func numberAfter(text []byte, prefix string, base, bits int) (uint64, error) {
	number, err := lineAfter(text, prefix)
	n, errNumber := strconv.ParseUint(number, base, bits)
	if err = cmp.Or(err, errNumber); err != nil {
		return 0, err // and not the largest number
	}
	return n, nil
}

// allUIDs reports whether the text of /proc/PID/uid_map maps every user to itself, as in the node's own user namespace.
func allUIDs(text []byte) bool {
	return strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}
