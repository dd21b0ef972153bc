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

// Look returns what a container's first process sees. A process that has ended leaves Known false. The files of its
// image may take as long as the timeout: a container can mount a file system that does not answer.
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

// HugePages reports whether a process has a file system of huge pages.
func HugePages(root string, pid int) bool {
	return len(Mounts(root, pid, mountinfo.FSTypeFilter("hugetlbfs"))) > 0
}

// HostPaths returns where the node's /dev/infiniband is mounted for a process.
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

// user returns the user of a process, -1 where it is unknown.
func user(root string, p Process) int {
	text, _ := os.ReadFile(p.File(root, "status")) // without it, the user is unknown
	_, ids, _ := strings.Cut(string(text), "\nUid:")
	fields := strings.Fields(ids)
	if len(fields) < 2 {
		return -1
	}
	id, err := strconv.Atoi(fields[1]) // the effective one
	if err != nil {
		return -1
	}
	return id
}

// Mounts returns the mounts that a process sees; nil filters none out.
func Mounts(root string, pid int, filter mountinfo.FilterFunc) []*mountinfo.Info {
	file, err := os.Open(Process{PID: pid}.File(root, "mountinfo"))
	if err != nil {
		return nil // it has ended
	}
	defer func() { _ = file.Close() }() // it was only read
	all, _ := mountinfo.GetMountsFromReader(file, filter)
	return all
}

// size returns the size=65536k of a file system's options, 0 where it is not said.
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

// Inside is what the first process of a container sees. Known is false where it could not be looked at.
type Inside struct {
	User          int          `json:"user"` // of the process; -1 where it is unknown
	Known         bool         `json:"known"`
	Unread        string       `json:"unread,omitempty"`        // why its addresses are unknown
	OwnNetwork    bool         `json:"ownNetwork"`              // it is not in the node's network namespace
	Addresses     []netip.Addr `json:"addresses,omitempty"`     // of its network namespace
	Links         []Link       `json:"links,omitempty"`         // of its network namespace
	PolicyRouting bool         `json:"policyRouting,omitempty"` // IPv4 has routing tables beside main
	HostPaths     []string     `json:"hostPaths,omitempty"`     // mounts of the node's /dev/infiniband, or of files in it
	SharedMem     *spec.Limit  `json:"sharedMem,omitempty"`     // the size of its /dev/shm
	HugePages     bool         `json:"hugePages,omitempty"`     // a file system of huge pages is mounted
	Silent        bool         `json:"silent,omitempty"`        // the files of its image did not answer in time
	Image
}

// SmallSharedMemory is the size of /dev/shm that a runtime gives by default.
const SmallSharedMemory = spec.Limit(64 << 20)
