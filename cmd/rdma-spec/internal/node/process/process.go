// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process reads a node's processes: their names, command lines, systemd units, and the kernel's files about
// them. It does not know the purpose of a process. It uses package limits, which lists the processes and reads their
// limits.
package process

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"
)

// Process is a process of the node.
type Process struct {
	PID    int
	Comm   string // the name, up to 15 characters
	Args   []string
	Exe    string // "" if unreadable; ends with Deleted if the file was replaced
	OnNode bool   // the process sees the node's files, not a container's files
}

// Deleted is the suffix that the kernel adds to the path of a program whose file is gone.
const Deleted = " (deleted)"

// Table contains the processes of a node at one moment. To find several processes, read the table only once.
type Table struct {
	Root  string // of the node
	named []Process
}

// ReadTable reads the processes of the node under a root.
func ReadTable(root string) Table {
	t := Table{Root: root}
	pids, _ := limits.New(root).PIDs() // without /proc, the list is empty
	for _, pid := range pids {
		p := Process{PID: pid}
		text, err := os.ReadFile(p.File(root, "comm"))
		if err != nil {
			continue // the process has exited
		}
		p.Comm = strings.TrimSuffix(string(text), "\n")
		t.named = append(t.named, p)
	}
	return t
}

// Where returns the processes whose names a function accepts, sorted by process ID.
func (t Table) Where(choose func(comm string) bool) (found []Process) {
	for _, p := range t.named {
		if !choose(p.Comm) {
			continue
		}
		p.Exe, _ = os.Readlink(p.File(t.Root, "exe"))
		p.OnNode = sameRoot(t.Root, p.File(t.Root, ""))
		if line, err := os.ReadFile(p.File(t.Root, "cmdline")); err == nil {
			p.Args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		}
		found = append(found, p)
	}
	return found
}

// Called returns the processes with one of these names. The kernel truncates names to 15 characters.
func (t Table) Called(names ...string) []Process {
	return t.Where(func(comm string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return comm == name[:min(len(name), 15)] })
	})
}

// Flag returns the value of a flag; "" if the process does not have the flag.
func (p Process) Flag(names ...string) string {
	for i, arg := range p.Args {
		for _, name := range names {
			if value, found := strings.CutPrefix(arg, name+"="); found {
				return value
			}
			if arg == name && i+1 < len(p.Args) {
				return p.Args[i+1]
			}
		}
	}
	return ""
}

// Switch returns the value of a boolean flag, and whether the process has the flag.
func (p Process) Switch(name string) (on, has bool) {
	for _, arg := range p.Args {
		if flag, value, hasValue := strings.Cut(arg, "="); flag == name {
			parsed, err := strconv.ParseBool(value)
			on = parsed || !hasValue
			has = err == nil || !hasValue
		}
	}
	return on, has
}

// File returns the path of a file in the process's directory.
func (p Process) File(root, name string) string {
	return filepath.Join(root, "proc", strconv.Itoa(p.PID), name)
}

// OwnNetwork reports whether the process is in a different network namespace from the node's first process. known is
// false if the namespaces cannot be read, for example because the process has exited.
func (p Process) OwnNetwork(root string) (own, known bool) {
	network, err := os.Readlink(p.File(root, "ns/net"))
	first, errFirst := os.Readlink(Process{PID: 1}.File(root, "ns/net"))
	return network != first, err == nil && errFirst == nil
}

// Sandboxed reports whether the process belongs to a runtime whose containers have their own kernel.
func (p Process) Sandboxed(root string) bool {
	program, err := os.Readlink(p.File(root, "exe"))
	return err == nil && sandbox.Process(program, sameRoot(root, p.File(root, "")))
}

// Unit returns the systemd unit of the process; "" if it has none.
func (p Process) Unit(root string) string {
	text, _ := os.ReadFile(p.File(root, "cgroup")) // on error, there is no unit
	for line := range strings.Lines(string(text)) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if strings.HasSuffix(part, ".service") {
				return part
			}
		}
	}
	return ""
}

// clockTicks is the kernel's USER_HZ, which is 100 on amd64 and arm64.
const clockTicks = 100

// Started returns the time when the process started; the zero time if it is unknown.
func (p Process) Started(root string) time.Time {
	stat, _ := os.ReadFile(p.File(root, "stat"))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	system, _ := os.ReadFile(filepath.Join(root, "proc/stat"))
	_, boot, found := strings.Cut(string(system), "\nbtime ")
	boot, _, _ = strings.Cut(boot, "\n")
	if len(fields) < 20 || !found {
		return time.Time{}
	}
	seconds, err := strconv.ParseInt(boot, 10, 64)
	ticks, errTicks := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil || errTicks != nil {
		return time.Time{}
	}
	return time.Unix(seconds+ticks/clockTicks, 0)
}

// Holds reports whether the process has one of these sockets open. The sockets are given by inode.
func (p Process) Holds(root string, inodes []string) bool {
	links, _ := filepath.Glob(p.File(root, "fd/*")) // fails only for a bad pattern
	return slices.ContainsFunc(links, func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]"))
	})
}

// Opened returns the names of the verbs devices that the process has open, such as uverbs0.
func (p Process) Opened(root string) (names []string) {
	for _, link := range VerbsFiles(root, strconv.Itoa(p.PID)) {
		to, _ := os.Readlink(filepath.Join(root, link)) // the file is closed
		names = append(names, strings.TrimSuffix(path.Base(to), Deleted))
	}
	return names
}

// User returns the effective user ID of the process, or -1 if it is unknown.
func (p Process) User(root string) int { return user(root, p) }

// VerbsFiles returns the links from processes to their open verbs devices, relative to the root. pids is a pattern for
// the process IDs. The devices are identified by path, because a query to a device might not return. In a copy of a
// node, the paths are relative to the links.
func VerbsFiles(root, pids string) (names []string) {
	links, _ := filepath.Glob(filepath.Join(root, "proc", pids, "fd/*")) // fails only for a bad pattern
	for _, link := range links {
		to, err := os.Readlink(link) // the file can be closed in the meantime
		if !path.IsAbs(to) {
			to = path.Join("/proc/1/fd", to)
		}
		if name, inside := filepath.Rel(root, link); err == nil && inside == nil && IsVerbs(strings.TrimSuffix(to, Deleted)) {
			names = append(names, name)
		}
	}
	return names
}

// IsVerbs reports whether a path belongs to a verbs device. An Omni-Path device counts as a verbs device.
func IsVerbs(device string) bool {
	return strings.HasPrefix(device, "/dev/infiniband/uverbs") || strings.HasPrefix(device, "/dev/hfi1_")
}

// sameRoot reports whether a process has the node's root directory, given the process's directory in /proc. Services
// with their own mounts have the node's root directory, but containers do not. In a copy of a node, the result is true
// for every process.
func sameRoot(root, process string) bool {
	its, err := os.Stat(filepath.Join(process, "root"))
	if err != nil {
		return true
	}
	nodes, err := os.Stat(root)
	return err == nil && os.SameFile(its, nodes)
}

// Listening returns the inodes of the sockets that listen on a path.
func Listening(root, path string) (inodes []string) {
	const accepting = 0x10000 // the kernel's flag for a listening socket
	text, _ := os.ReadFile(filepath.Join(root, "proc/net/unix"))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(fields) < 8 || !SamePath(fields[7], path) {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepting != 0 {
			inodes = append(inodes, fields[6])
		}
	}
	return inodes
}

// SamePath reports whether two paths on a node are equal. /var/run is a link to /run.
func SamePath(a, b string) bool {
	clean := func(name string) string { return strings.TrimPrefix(path.Clean(name), "/var") }
	return clean(a) == clean(b)
}
