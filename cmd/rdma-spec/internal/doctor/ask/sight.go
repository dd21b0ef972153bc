// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
)

// imagePart is how long the files of an image may take, as a part of the doctor's patience. A container can mount a file system that does
// not answer, and there can be several.
const imagePart = 6

// Sight fills in what a container's first process sees, with the doctor's patience. A process that has ended leaves Seen false.
func Sight(root string, pid int, patience time.Duration, c *doctor.Container) {
	p := process.Process{PID: pid}
	c.User = user(root, p)
	if c.OwnNetwork, c.Seen = p.OwnNetwork(root); !c.Seen {
		return
	}
	if c.OwnNetwork {
		c.Links = links(root, p)
	}
	for _, m := range mounts(root, pid, "/dev/") {
		switch {
		case hostDevices(m, c.HostUsers):
			c.HostPaths = append(c.HostPaths, m.at)
		case m.at == "/dev/shm" && m.size > 0:
			size := m.size
			c.SharedMem = &size
		}
	}
	image := make(chan doctor.Container, 1)
	go func() { image <- libraries(p.File(root, "root")) }()
	select {
	case has := <-image:
		c.LibVerbs, c.Providers = has.LibVerbs, has.Providers
	case <-time.After(patience / imagePart):
		c.Silent = true
	}
}

// HostPaths returns where the node's /dev/infiniband is mounted for a process.
func HostPaths(root string, pid int) (at []string) {
	for _, m := range mounts(root, pid, "/dev/infiniband") {
		if hostDevices(m, false) {
			at = append(at, m.at)
		}
	}
	return at
}

// hostDevices reports whether a mount is the node's /dev/infiniband. In a user namespace, a runtime mounts single devices.
func hostDevices(m mount, files bool) bool {
	if m.at != "/dev/infiniband" && (!files || path.Dir(m.at) != "/dev/infiniband") {
		return false
	}
	return m.kind == "devtmpfs" || strings.HasPrefix(m.of, "/dev/infiniband") || strings.HasPrefix(m.of, "/infiniband")
}

// user returns the user of a process, -1 where it is unknown.
func user(root string, p process.Process) int {
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

// links returns the interfaces of a process's network namespace, but lo.
func links(root string, p process.Process) (names []string) {
	text, _ := os.ReadFile(p.File(root, "net/dev")) // without it, there are none
	for line := range strings.Lines(string(text)) {
		name, _, isLink := strings.Cut(strings.TrimSpace(line), ":")
		if isLink && name != "lo" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mount is a mount that a process sees.
type mount struct {
	of, at, kind string // the folder of the file system, where it is, and the kind of file system
	size         doctor.Bytes
}

// mounts returns the mounts that a process sees, of those whose line has a word.
func mounts(root string, pid int, word string) (all []mount) {
	text, _ := os.ReadFile(process.Process{PID: pid}.File(root, "mountinfo")) // it has ended
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, word) {
			continue
		}
		// ID parent major:minor root mountpoint options [optional fields] - type source super-options
		mine, system, found := strings.Cut(line, " - ")
		fields, its := strings.Fields(mine), strings.Fields(system)
		if !found || len(fields) < 5 || len(its) < 1 {
			continue
		}
		m := mount{of: fields[3], at: fields[4], kind: its[0]}
		if len(its) > 2 {
			m.size = size(its[2])
		}
		all = append(all, m)
	}
	return all
}

// size returns the size=65536k of a file system's options, 0 where it is not said.
func size(options string) doctor.Bytes {
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
		return doctor.Bytes(n << map[string]int{"k": 10, "m": 20, "g": 30}[text[len(number):]])
	}
	return 0
}

// providerName is the file of a provider.
var providerName = regexp.MustCompile(`^lib(.+)-rdmav[0-9]+\.so$`)

// libraries looks for libibverbs in a container's image.
func libraries(folder string) (has doctor.Container) {
	files, err := os.OpenRoot(folder)
	if err != nil {
		return has
	}
	defer func() { _ = files.Close() }() // it was only read
	for _, lib := range verbs.LibraryFolders {
		found, _ := fs.Glob(files.FS(), lib+"/libibverbs.so.1") // a bad pattern is the only error
		has.LibVerbs = has.LibVerbs || len(found) > 0
		plugins, _ := fs.Glob(files.FS(), lib+"/libibverbs/lib*.so")
		for _, file := range plugins {
			if name := providerName.FindStringSubmatch(path.Base(file)); name != nil && !slices.Contains(has.Providers, name[1]) {
				has.Providers = append(has.Providers, name[1])
			}
		}
	}
	slices.Sort(has.Providers)
	return has
}
