// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Look returns the view of a container's first process. If the process has exited, Known is false. The timeout applies
// to the files of the image, because a container can mount a file system that does not respond.
func Look(root string, pid int, hostUsers bool, timeout time.Duration) (c Inside) {
	p := Process{PID: pid}
	c.User = user(root, p)
	c.OwnNetwork, c.Known = p.OwnNetwork(root)
	if err := c.readNetwork(root, p); err != nil {
		c.Known = false
		c.Unread = err.Error()
	}
	c.readFilters(root, p)
	c.HugePages = HugePages(root, pid)
	for _, m := range Mounts(root, pid, mountinfo.PrefixFilter("/dev")) {
		shared := size(m.VFSOptions)
		switch {
		case hostDevices(m, hostUsers):
			c.HostPaths = append(c.HostPaths, m.Mountpoint)
		case m.Mountpoint == "/dev/shm" && shared > 0:
			c.SharedMem = &shared
		}
	}
	image := make(chan Image, 1)
	go func() { image <- ReadImage(p.File(root, "root"), c.Links) }()
	select {
	case c.Image = <-image:
	case <-time.After(timeout):
		c.Silent = true
	}
	return c
}

// HugePages reports whether a hugetlbfs file system is mounted for a process.
func HugePages(root string, pid int) bool {
	return len(Mounts(root, pid, mountinfo.FSTypeFilter("hugetlbfs"))) > 0
}

// HostPaths returns the paths at which the node's /dev/infiniband is mounted for a process.
func HostPaths(root string, pid int) (at []string) {
	for _, m := range Mounts(root, pid, mountinfo.PrefixFilter("/dev/infiniband")) {
		if hostDevices(m, false) {
			at = append(at, m.Mountpoint)
		}
	}
	return at
}

// hostDevices reports whether a mount is the node's /dev/infiniband. In a user namespace, a runtime mounts single
// devices.
func hostDevices(m *mountinfo.Info, files bool) bool {
	if m.Mountpoint != "/dev/infiniband" && (!files || path.Dir(m.Mountpoint) != "/dev/infiniband") {
		return false
	}
	return m.FSType == "devtmpfs" || strings.HasPrefix(m.Root, "/dev/infiniband") ||
		strings.HasPrefix(m.Root, "/infiniband")
}

// user returns the user ID of a process, or -1 if it is unknown.
func user(root string, p Process) int {
	text, _ := os.ReadFile(p.File(root, "status")) // without it, the user is unknown
	_, ids, _ := strings.Cut(string(text), "\nUid:")
	fields := strings.Fields(ids)
	if len(fields) < 2 {
		return -1
	}
	id, err := strconv.Atoi(fields[1]) // the effective user ID
	if err != nil {
		return -1
	}
	return id
}

// Mounts returns the mounts that a process sees. A nil filter returns all mounts.
func Mounts(root string, pid int, filter mountinfo.FilterFunc) []*mountinfo.Info {
	file, err := os.Open(Process{PID: pid}.File(root, "mountinfo"))
	if err != nil {
		return nil // the process has exited
	}
	defer func() { _ = file.Close() }() // opened only for reading
	all, _ := mountinfo.GetMountsFromReader(file, filter)
	return all
}

// size returns the size in a file system's options, such as size=65536k; 0 if the options contain no size.
func size(options string) spec.Limit {
	for option := range strings.SplitSeq(options, ",") {
		text, found := strings.CutPrefix(option, "size=")
		if !found {
			continue
		}
		number := strings.TrimRight(text, "kmg")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return 0
		}
		return spec.Limit(n << map[string]int{"k": 10, "m": 20, "g": 30}[text[len(number):]])
	}
	return 0
}

// Inside is the view of a container's first process. Known is false if the process could not be examined.
type Inside struct {
	User          int          `json:"user"` // the process's user ID; -1 if unknown
	Known         bool         `json:"known"`
	Unread        string       `json:"unread,omitempty"`        // why the addresses are unknown
	OwnNetwork    bool         `json:"ownNetwork"`              // the process is not in the node's network namespace
	Addresses     []netip.Addr `json:"addresses,omitempty"`     // of the process's network namespace
	Links         []Link       `json:"links,omitempty"`         // of the process's network namespace
	PolicyRouting bool         `json:"policyRouting,omitempty"` // IPv4 has routing tables other than main
	HostPaths     []string     `json:"hostPaths,omitempty"`     // mounts of the node's /dev/infiniband, or of files in it
	SharedMem     *spec.Limit  `json:"sharedMem,omitempty"`     // the size of /dev/shm
	HugePages     bool         `json:"hugePages,omitempty"`     // hugetlbfs is mounted
	Silent        bool         `json:"silent,omitempty"`        // reading the image's files timed out
	Image
}

// SmallSharedMemory is the default size of /dev/shm in a container.
const SmallSharedMemory = spec.Limit(64 << 20)
