// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ask answers the doctor's questions on a live node: which container runtimes, plugins and kubelet run, how they are configured,
// and what the processes of a container see. It judges nothing, and changes nothing.
package ask

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/containerd"
)

// process is a process of the node.
type process struct {
	pid    int
	comm   string
	args   []string
	exe    string // "" where it may not be read; ends with deleted where the file was replaced
	onNode bool   // it sees the node's files, and not those of a container
}

// deleted is what the kernel adds to the path of a program whose file is gone.
const deleted = " (deleted)"

// processes returns the processes of the node below a root that a function chooses by their names, in the order of their IDs.
func processes(root string, choose func(comm string) bool) (found []process) {
	files, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm")) // a bad pattern is the only error
	for _, file := range files {
		text, err := os.ReadFile(file)
		comm := strings.TrimSuffix(string(text), "\n")
		if err != nil || !choose(comm) {
			continue
		}
		folder := filepath.Dir(file)
		p := process{comm: comm}
		p.pid, _ = strconv.Atoi(filepath.Base(folder)) // the pattern has digits; 0 does no harm
		p.exe, _ = os.Readlink(filepath.Join(folder, "exe"))
		p.onNode = containerd.SameRoot(root, folder)
		if line, err := os.ReadFile(filepath.Join(folder, "cmdline")); err == nil {
			p.args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		}
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found
}

// called returns a function that chooses the processes with one of these names, of which the kernel keeps 15 characters.
func called(names ...string) func(string) bool {
	return func(comm string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return comm == name[:min(len(name), 15)] })
	}
}

// flag returns the value of a flag, "" where the process does not have it.
func (p process) flag(names ...string) string {
	for i, arg := range p.args {
		for _, name := range names {
			if value, found := strings.CutPrefix(arg, name+"="); found {
				return value
			}
			if arg == name && i+1 < len(p.args) {
				return p.args[i+1]
			}
		}
	}
	return ""
}

// file returns the path of a file in the process's folder.
func (p process) file(root, name string) string {
	return filepath.Join(root, "proc", strconv.Itoa(p.pid), name)
}

// unit returns the systemd unit of the process, "" where it has none.
func (p process) unit(root string) string {
	text, _ := os.ReadFile(p.file(root, "cgroup")) // without it, there is no unit
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

// started returns when the process started; the zero time where that is unknown.
func (p process) started(root string) time.Time {
	stat, _ := os.ReadFile(p.file(root, "stat"))
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

// holds reports whether the process has one of these sockets open, by their inodes.
func (p process) holds(root string, inodes []string) bool {
	links, _ := filepath.Glob(p.file(root, "fd/*")) // a bad pattern is the only error
	return slices.ContainsFunc(links, func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]"))
	})
}

// listening returns the inodes of the sockets that listen at a path.
func listening(root, path string) (inodes []string) {
	const accepting = 0x10000 // the kernel's flag of a socket that listens
	text, _ := os.ReadFile(filepath.Join(root, "proc/net/unix"))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(fields) < 8 || !sameSocket(fields[7], path) {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&accepting != 0 {
			inodes = append(inodes, fields[6])
		}
	}
	return inodes
}

// sameSocket compares paths of sockets. /var/run is a link to /run.
func sameSocket(a, b string) bool {
	clean := func(path string) string { return strings.TrimPrefix(filepath.Clean(path), "/var") }
	return clean(a) == clean(b)
}
