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

// DevicesChanged returns when a device node of an HCA was last added or removed: the time stamp of their directory,
// DeviceDir, for one system call. It is the zero time if there is no directory.
func DevicesChanged(root string) time.Time {
	info, err := os.Stat(filepath.Join(root, DeviceDir))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// deviceNode is what lies at a path in /dev/infiniband.
type deviceNode struct {
	Mode     os.FileMode // type and permission bits
	Number   Number      // of a device
	UID, GID uint32
}

// deviceNodes knows what lies in a tree's /dev/infiniband.
type deviceNodes struct {
	lstat func(path string) (fs.FileInfo, error)
	live  bool
	// table describes the nodes of a copy, by path; see DeviceTable.
	table map[string]deviceNode
	// dir describes what is wrong with /dev/infiniband itself.
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

// check compares a device with its node: it fills in mode and owner, or describes what is wrong. The number stays the
// one from sysfs.
func (n deviceNodes) check(d *Device) {
	if n.dir != "" && path.Dir(d.Path) == DeviceDir {
		d.Problem = n.dir
		return
	}
	node, err := n.at(d.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		d.Missing = true
		d.Problem = fmt.Sprintf("%s is missing, but sysfs lists it as %s: check that the node's /dev is visible "+
			"here", d.Path, d.Number)
	case err != nil:
		d.Problem = fmt.Sprintf("%s: %v", d.Path, files.Cause(err))
	// guard: only character devices
	case node.Mode.Type() != fs.ModeDevice|fs.ModeCharDevice:
		d.Problem = fmt.Sprintf("%s is %s, not a character device", d.Path, files.TypeName(node.Mode))
	// guard: the number of sysfs
	case node.Number != d.Number:
		d.Problem = fmt.Sprintf("%s has the number %s, but sysfs says %s", d.Path, node.Number, d.Number)
	default:
		d.Mode = Mode(node.Mode.Perm())
		d.UID = node.UID
		d.GID = node.GID
	}
}

// at returns what lies at a path. In a copy, a regular file stands for a node that could not be copied.
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

// nodeOf reads a device node's number and owner out of its stat.
func nodeOf(fi fs.FileInfo) deviceNode {
	node := deviceNode{Mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		node.Number = Number{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
		node.UID = st.Uid
		node.GID = st.Gid
	}
	return node
}

// inTree turns a path on the node into a path in its tree.
func inTree(path string) string { return strings.TrimPrefix(path, "/") }

// DeviceTable is the file at the top of a copied node that describes the device nodes which the copy could not hold:
// see the package's documentation.
const DeviceTable = "device-table.txt"

// maxDeviceTable bounds that file: enough for 10,000 devices.
const maxDeviceTable = 1 << 20

// readDeviceTable returns the text of a copy's table; "" where there is none.
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

// parseDeviceTable returns the rows of a table by path. Lines that it does not understand are problems and name no
// device.
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
			found.add("%s:%d: is not \"path type mode uid gid major minor\" with a type of c, b, p, d, f", DeviceTable, number)
			continue
		}
		node.Mode = kind | fs.FileMode(mode)
		table[name] = node
	}
	return table
}
