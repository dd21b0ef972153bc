// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"io/fs"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// fakeInfo is the result of a stat of a file that only root could create.
type fakeInfo struct {
	mode fs.FileMode
	stat syscall.Stat_t
}

func (f fakeInfo) Name() string       { return "" }
func (f fakeInfo) Size() int64        { return 0 }
func (f fakeInfo) Mode() fs.FileMode  { return f.mode }
func (f fakeInfo) ModTime() time.Time { return time.Time{} }
func (f fakeInfo) IsDir() bool        { return f.mode.IsDir() }
func (f fakeInfo) Sys() any           { return &f.stat }

const charDevice = fs.ModeDevice | fs.ModeCharDevice

// lies returns an lstat that returns the same result for every path.
func lies(mode fs.FileMode, major, minor uint32) func(string) (fs.FileInfo, error) {
	return func(string) (fs.FileInfo, error) {
		return fakeInfo{mode: mode, stat: syscall.Stat_t{Rdev: unix.Mkdev(major, minor), Uid: 1, Gid: 6}}, nil
	}
}

func fails(err error) func(string) (fs.FileInfo, error) {
	return func(path string) (fs.FileInfo, error) {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
}

func TestCheckNode(t *testing.T) {
	const path = "/dev/infiniband/uverbs0"
	const missing = path + " is missing, but sysfs contains its device number, 231:192: check that the node's /dev is visible to this program"
	const not = ", not a character device"
	row := map[string]deviceNode{path: {Mode: charDevice | 0o600, Number: Number{231, 192}, UID: 7, GID: 8}}
	live := func(lstat func(string) (fs.FileInfo, error)) deviceNodes {
		return deviceNodes{live: true, lstat: lstat}
	}
	for _, tc := range []struct {
		name    string
		nodes   deviceNodes
		problem string
		missing bool
		mode    Mode
		owner   [2]uint32
	}{
		{name: "sound", nodes: live(lies(charDevice|0o660, 231, 192)), mode: 0o660, owner: [2]uint32{1, 6}},
		{name: "sticky", nodes: live(lies(charDevice|fs.ModeSticky|0o644, 231, 192)), mode: 0o644, owner: [2]uint32{1, 6}},
		{name: "link", nodes: live(lies(fs.ModeSymlink|0o777, 231, 192)), problem: path + " is a symbolic link" + not},
		{name: "block device", nodes: live(lies(fs.ModeDevice|0o666, 231, 192)), problem: path + " is a block device" + not},
		{name: "FIFO", nodes: live(lies(fs.ModeNamedPipe, 0, 0)), problem: path + " is a FIFO" + not},
		{name: "socket", nodes: live(lies(fs.ModeSocket, 0, 0)), problem: path + " is a socket" + not},
		{name: "unknown type", nodes: live(lies(fs.ModeIrregular, 0, 0)), problem: path + " is of an unknown type" + not},
		{name: "file on the live node", nodes: deviceNodes{live: true, lstat: lies(0o666, 0, 0), table: row},
			problem: path + " is a regular file" + not},
		{name: "other minor", nodes: live(lies(charDevice, 231, 193)),
			problem: path + " has device number 231:193, but its number in sysfs is 231:192"},
		{name: "other major", nodes: live(lies(charDevice, 8, 192)),
			problem: path + " has device number 8:192, but its number in sysfs is 231:192"},
		{name: "missing", nodes: live(fails(syscall.ENOENT)), problem: missing, missing: true},
		{name: "no /dev", nodes: live(fails(syscall.ENOTDIR)), problem: missing, missing: true},
		{name: "denied", nodes: live(fails(syscall.EACCES)), problem: path + ": permission denied"},
		{name: "copy without nodes", nodes: deviceNodes{lstat: fails(syscall.ENOENT)}, problem: missing, missing: true},
		{name: "copy with a file for a node", nodes: deviceNodes{lstat: lies(0o644, 0, 0)}, problem: missing, missing: true},
		{name: "copy with a table", nodes: deviceNodes{lstat: fails(syscall.ENOENT), table: row},
			mode: 0o600, owner: [2]uint32{7, 8}},
		{name: "copy with a file and a table", nodes: deviceNodes{lstat: lies(0o644, 0, 0), table: row},
			mode: 0o600, owner: [2]uint32{7, 8}},
		{name: "what lies there beats the table", nodes: deviceNodes{lstat: lies(fs.ModeSymlink, 0, 0), table: row},
			problem: path + " is a symbolic link" + not},
		{name: "directory", nodes: deviceNodes{dir: "/dev/infiniband is a symbolic link, not a directory",
			lstat: lies(charDevice, 231, 192)}, problem: "/dev/infiniband is a symbolic link, not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Device{Path: path, Number: Number{231, 192}, Mode: 0o666}
			want := got
			want.Problem, want.Missing = tc.problem, tc.missing
			if tc.problem == "" {
				want.Mode, want.UID, want.GID = tc.mode, tc.owner[0], tc.owner[1]
			}
			tc.nodes.check(&got)
			expect.Equal(t, "device", want, got)
		})
	}
}

// TestDeviceNodes_realNode reads a device node that every Linux system has, through both kinds of trees: /proc/self/root is / under
// a name that makes it a copy.
func TestDeviceNodes_realNode(t *testing.T) {
	for _, root := range []string{"/", "/proc/self/root"} {
		tr, err := openTree(root)
		must.Succeed(t, err)
		defer tr.close()
		nodes := tr.nodes(nil)
		if nodes.live != (root == "/") {
			t.Errorf("root %q: live is %v", root, nodes.live)
		}
		d := Device{Path: "/dev/null", Number: Number{1, 3}}
		nodes.check(&d)
		if want := (Device{Path: "/dev/null", Number: Number{1, 3}, Mode: 0o666}); d != want {
			t.Errorf("root %q: /dev/null is %+v, want %+v", root, d, want)
		}
	}
}

// devDir: if /dev/infiniband itself is not a directory, no device in it is sound.
func devDir(t *testing.T) {
	for name, tc := range map[string]struct {
		change hcatest.Files
		want   string
	}{
		"directory": {hcatest.Files{"dev/infiniband/": ""}, ""},
		"link": {hcatest.Files{"dev/infiniband": hcatest.Link("../elsewhere"), "elsewhere/": ""},
			"/dev/infiniband is a symbolic link, not a directory"},
		"file": {hcatest.Files{"dev/infiniband": ""}, "/dev/infiniband is a regular file, not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, d := range scanOne(t, one().Files().With(tc.change)).Devices {
				if d.Problem != tc.want {
					t.Errorf("%s has problem %q, want %q", d, d.Problem, tc.want)
				}
			}
		})
	}
}

func TestDeviceTable(t *testing.T) {
	const table = `
# made by hand
/dev/a c 0660 0 6 231 192
/dev/b b 600 0 0 8 0 0 - -
	/dev/c	f	644	0	0	0	0
/dev/d
/dev/e x 666 0 0 1 1
/dev/f c 999 0 0 1 1
/dev/g c 666 0 -1 1 1
/dev/h c 666 0 0 1 99999999999
/dev/a c 0600 0 0 231 193
`
	tr, err := openTree(hcatest.Files{DeviceTable: table}.Root(t))
	must.Succeed(t, err)
	defer tr.close()
	var found problems
	got := parseDeviceTable(readDeviceTable(tr, &found), &found)
	want := map[string]deviceNode{
		"/dev/a": {Mode: charDevice | 0o600, Number: Number{231, 193}},
		"/dev/b": {Mode: fs.ModeDevice | 0o600, Number: Number{8, 0}},
		"/dev/c": {Mode: 0o644},
	}
	expect.Equal(t, "rows", want, got)
	wantProblems := []string{
		`device-table.txt:6: the line does not have the form "path type mode uid gid major minor" with type c, b, p, d, or f`,
		`device-table.txt:7: the line does not have the form "path type mode uid gid major minor" with type c, b, p, d, or f`,
		`device-table.txt:8: the line does not have the form "path type mode uid gid major minor" with type c, b, p, d, or f`,
		`device-table.txt:9: the line does not have the form "path type mode uid gid major minor" with type c, b, p, d, or f`,
		`device-table.txt:10: the line does not have the form "path type mode uid gid major minor" with type c, b, p, d, or f`,
	}
	expect.Equal(t, "problems", wantProblems, found.all())
}

func TestDeviceTableUnreadable(t *testing.T) {
	node := scan(t, one().Files().With(hcatest.Files{DeviceTable + "/": ""}))
	expect.Equal(t, "problems", []string{"device-table.txt: the path is a directory, not a regular file"}, node.Problems)
	if d := node.HCAs[0].Devices[0]; !d.Missing {
		t.Errorf("%s is not missing: %q", d, d.Problem)
	}
}
