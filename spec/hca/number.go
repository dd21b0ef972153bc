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

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Numbers identifies a node's verbs devices by their device numbers. Numbers reads the kernel's links in /sys/dev/char,
// which are always up to date, and does not query any HCA.
type Numbers struct{ char *os.File }

// nullDevice is the number of /dev/null, which exists on every Linux system.
var nullDevice = Number{Major: 1, Minor: 3}

// OpenNumbers opens the directory sys/dev/char of the node at root. OpenNumbers returns an error if the directory
// cannot be opened, or does not contain the number of /dev/null. Without this check, a node whose sysfs is not mounted
// would look like a node without verbs devices.
func OpenNumbers(root string) (*Numbers, error) {
	const fix = "mount the node's /sys/dev under the same root as /sys/class and /sys/devices"
	// Because of the trailing slashes, the kernel opens only directories. Opening a FIFO would block.
	char, err := os.OpenInRoot(root+"/", "sys/dev/char/")
	if err != nil {
		return nil, fmt.Errorf("cannot look up device numbers under %s, because sys/dev/char cannot be opened (%w): %s",
			root, files.Cause(err), fix)
	}
	numbers := &Numbers{char}
	if _, err := numbers.link(nullDevice); err != nil {
		_ = char.Close()
		return nil, fmt.Errorf("cannot look up device numbers under %s, because sys/dev/char does not contain %s, the "+
			"number of /dev/null (%w): %s", root, nullDevice, files.Cause(err), fix)
	}
	return numbers, nil
}

// Close closes the directory.
func (n *Numbers) Close() error { return n.char.Close() }

// link reads the link for a number. link makes the system call directly, because each request waits for one call for
// each device in a container. os.Root takes a third longer, because it checks that the path does not leave the
// directory. A number cannot leave the directory.
func (n *Numbers) link(number Number) (string, error) {
	var target [unix.PathMax]byte
	length, err := unix.Readlinkat(int(n.char.Fd()), number.String(), target[:])
	return string(target[:max(length, 0)]), err
}

// Verbs reports whether the character device with this number is a verbs device, or Omni-Path's counterpart, hfi1_N. In
// the returned Device, Kind, Path, Number, and Place are set, and Mode is the kernel's default. HCA is set only for
// hfi1_N, because the link does not contain the HCA of other devices. Verbs returns an error if the link cannot be
// read. After an error, the kind of the device is unknown.
func (n *Numbers) Verbs(number Number) (Device, bool, error) {
	target, err := n.link(number)
	// guard: only ENOENT is no
	if errors.Is(err, fs.ErrNotExist) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("cannot identify the character device %s: %w", number, files.Cause(err))
	}
	d := newDevice(path.Base(target), number)
	d.Place = target
	if d.Kind == KindHFI1 {
		d.HCA = path.Base(target)
	}
	return d, d.Kind.Verbs(), nil
}

// VerbsByNumber reports whether a character device number belongs to a verbs device (uverbs*, or Omni-Path's hfi1_N) of
// the node at root. VerbsByNumber returns the errors of OpenNumbers and Numbers.Verbs. To check many numbers faster,
// call OpenNumbers once, and call Numbers.Verbs for each number.
func VerbsByNumber(root string, number Number) (Device, bool, error) {
	numbers, err := OpenNumbers(root)
	if err != nil {
		return Device{}, false, err
	}
	defer numbers.Close() //nolint:errcheck // nothing is written
	return numbers.Verbs(number)
}
