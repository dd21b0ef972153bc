// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// DevicesChanged returns the time at which a device node was last added to or removed from DeviceDir on the node at
// root. This time is the modification time of the directory. DevicesChanged makes only one system call. If the call
// fails, for example because the directory does not exist, DevicesChanged returns the zero time.
func DevicesChanged(root string) time.Time {
	info, err := os.Stat(filepath.Join(root, DeviceDir))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// deviceNode describes the file at a device's path.
type deviceNode struct {
	Mode     os.FileMode // type and permission bits
	Number   Number      // device number, if the file is a device
	UID, GID uint32
}

// deviceNodes looks up device nodes in a tree.
type deviceNodes struct {
	lstat func(path string) (fs.FileInfo, error)
	live  bool
	// table contains the device nodes of a copy by path: see DeviceTable.
	table map[string]deviceNode
	// dir is the problem with /dev/infiniband itself; "" if the directory has no problem.
	dir string
}

func (t tree) nodes(table map[string]deviceNode) deviceNodes {
	n := deviceNodes{lstat: t.Lstat, live: t.Live(), table: table}
	// guard: /dev/infiniband is a directory
	if fi, err := t.Lstat(inTree(DeviceDir)); err == nil && !fi.IsDir() {
		n.dir = fmt.Sprintf("%s is %s, not a directory", DeviceDir, files.TypeName(fi.Mode()))
	}
	return n
}

// check compares a device with its device node. It sets the device's mode and owner, or its Problem. It does not change
// the device number, which is from sysfs.
func (n deviceNodes) check(d *Device) {
	if n.dir != "" && path.Dir(d.Path) == DeviceDir {
		d.Problem = n.dir
		return
	}
	node, err := n.at(d.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		d.Missing = true
		d.Problem = fmt.Sprintf("%s is missing, but sysfs contains its device number, %s: check that the node's "+
			"/dev is visible to this program", d.Path, d.Number)
	case err != nil:
		d.Problem = fmt.Sprintf("%s: %v", d.Path, files.Cause(err))
	// guard: only character devices
	case node.Mode.Type() != fs.ModeDevice|fs.ModeCharDevice:
		d.Problem = fmt.Sprintf("%s is %s, not a character device", d.Path, files.TypeName(node.Mode))
	// guard: the number of sysfs
	case node.Number != d.Number:
		d.Problem = fmt.Sprintf("%s has device number %s, but its number in sysfs is %s", d.Path, node.Number, d.Number)
	default:
		d.Mode = Mode(node.Mode.Perm())
		d.UID = node.UID
		d.GID = node.GID
	}
}

// at returns the device node at a path. In a copy of a node, a regular file is a placeholder for a device node that
// could not be copied.
func (n deviceNodes) at(name string) (deviceNode, error) {
	fi, err := n.lstat(inTree(name))
	// guard: no device table on the live node
	if !n.live && (errors.Is(err, fs.ErrNotExist) || err == nil && fi.Mode().IsRegular()) {
		if row, ok := n.table[name]; ok {
			return row, nil
		}
		return deviceNode{}, fs.ErrNotExist
	}
	if err != nil {
		return deviceNode{}, err
	}
	return nodeOf(fi), nil
}

// nodeOf returns the device node that a FileInfo describes.
func nodeOf(fi fs.FileInfo) deviceNode {
	node := deviceNode{Mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		node.Number = Number{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
		node.UID = st.Uid
		node.GID = st.Gid
	}
	return node
}

// inTree converts a path on the node to a path in a tree.
func inTree(path string) string { return strings.TrimPrefix(path, "/") }

// DeviceTable is the name of a file at the root of a copy of a node. The file describes the device nodes that the copy
// cannot contain: see the package comment.
const DeviceTable = "device-table.txt"

// maxDeviceTable limits the size of the DeviceTable file, in bytes. The limit is large enough for 10,000 devices.
const maxDeviceTable = 1 << 20

// readDeviceTable returns the text of a copy's DeviceTable file; "" if the file does not exist, or if the tree is the
// live node.
func readDeviceTable(t tree, found *problems) string {
	if t.Live() {
		return ""
	}
	data, err := t.Read(DeviceTable, maxDeviceTable)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		found.add("%s: %v", DeviceTable, files.Cause(err))
	}
	return string(data)
}

// parseDeviceTable returns the rows of a table by path. It ignores invalid lines, and adds a problem for each invalid
// line.
func parseDeviceTable(text string, found *problems) map[string]deviceNode {
	types := map[string]fs.FileMode{"c": fs.ModeDevice | fs.ModeCharDevice, "b": fs.ModeDevice, "p": fs.ModeNamedPipe,
		"d": fs.ModeDir, "f": 0}
	table := map[string]deviceNode{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		var name, letter string
		var mode uint16
		var node deviceNode
		_, err := fmt.Sscanf(line, "%s %s %o %d %d %d %d", &name, &letter, &mode, &node.UID, &node.GID,
			&node.Number.Major, &node.Number.Minor)
		kind, known := types[letter]
		if err != nil || !known || mode > 0o777 {
			found.add("%s:%d: the line does not have the form \"path type mode uid gid major minor\" with type c, b, p, d, or f",
				DeviceTable, number)
			continue
		}
		node.Mode = kind | fs.FileMode(mode)
		table[name] = node
	}
	return table
}
