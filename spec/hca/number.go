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

// Numbers recognizes a node's verbs devices by their numbers. The answer is the kernel's link in /sys/dev/char: it is
// always up to date, and no HCA is asked for it.
type Numbers struct{ char *os.File }

// nullDevice is /dev/null, which every Linux has.
var nullDevice = Number{Major: 1, Minor: 3}

// OpenNumbers opens sys/dev/char of the node at root. It fails where that directory does not even know /dev/null:
// without the proof, a sysfs that is not mounted would look like a node without verbs devices.
func OpenNumbers(root string) (*Numbers, error) {
	const remedy = "mount the node's /sys/dev there, beside /sys/class and /sys/devices"
	// The slashes at the end have anything but a directory refused before it is opened: opening a FIFO would wait.
	char, err := os.OpenInRoot(root+"/", "sys/dev/char/")
	if err != nil {
		return nil, fmt.Errorf("cannot look up device numbers below %s: sys/dev/char: %w: %s", root, files.Cause(err), remedy)
	}
	numbers := &Numbers{char}
	if _, err := numbers.link(nullDevice); err != nil {
		_ = char.Close()
		return nil, fmt.Errorf("cannot look up device numbers below %s: sys/dev/char does not have %s, which is /dev/null: "+
			"%w: %s", root, nullDevice, files.Cause(err), remedy)
	}
	return numbers, nil
}

// Close releases the directory.
func (n *Numbers) Close() error { return n.char.Close() }

// link reads the link of a number. It calls the kernel directly: requests wait for it, for each device of a container,
// and os.Root takes a third longer to check that a number does not lead out of a directory.
func (n *Numbers) link(number Number) (string, error) {
	var target [unix.PathMax]byte
	length, err := unix.Readlinkat(int(n.char.Fd()), number.String(), target[:])
	return string(target[:max(length, 0)]), err
}

// Verbs reports whether the character device with this number is a verbs device, or Omni-Path's counterpart. The
// device has its Kind, Path, Number, Place and the kernel's Mode; HCA is that of hfi1_N, else "", since the link
// does not contain it. An error means that the answer is unknown.
func (n *Numbers) Verbs(number Number) (Device, bool, error) {
	target, err := n.link(number)
	// guard: only ENOENT is no
	if errors.Is(err, fs.ErrNotExist) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("cannot tell what the character device %s is: %w", number, files.Cause(err))
	}
	d := newDevice(path.Base(target), number)
	d.Place = target
	if d.Kind == KindHFI1 {
		d.HCA = path.Base(target)
	}
	return d, d.Kind.Verbs(), nil
}

// VerbsByNumber reports whether a character device number is a verbs device (uverbs*, or Omni-Path's hfi1_N) of the
// node at root. See OpenNumbers and Numbers.Verbs, which are cheaper for many numbers.
func VerbsByNumber(root string, number Number) (Device, bool, error) {
	numbers, err := OpenNumbers(root)
	if err != nil {
		return Device{}, false, err
	}
	defer numbers.Close() //nolint:errcheck // nothing is written
	return numbers.Verbs(number)
}
