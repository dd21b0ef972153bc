// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/files"
)

const (
	// maxAttribute is the largest page that Linux has: no attribute of sysfs is longer than a page, and tar makes each one
	// exactly that long.
	maxAttribute = 1 << 16
	// maxEntries bounds a directory. The largest that exist, of nodes with thousands of VFs, stay well below: the devices
	// for management are two for each port.
	maxEntries = 1 << 16
)

// tree is a node's file system, or a directory of it.
type tree struct{ files.Tree }

func openTree(root string) (tree, error) {
	t, err := files.Open(root)
	return tree{t}, err
}

func (t tree) close() { _ = t.Close() }

// dir opens a directory as a tree of its own: its links to outside, such as device, have to be followed from the
// top.
func (t tree) dir(name string) (tree, error) {
	f, err := t.Dir(name)
	return tree{f}, files.Cause(err)
}

// list returns the names in a directory in natural order; none if it is not there.
func (t tree) list(name string) ([]string, error) {
	names, err := t.List(name, maxEntries)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, files.Cause(err))
	}
	slices.SortFunc(names, compareNatural)
	return names, nil
}

// links returns where the links in a directory lead, by their names; none if it is not there.
func (t tree) links(name string) (map[string]string, error) {
	links, err := t.Links(name, maxEntries)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, files.Cause(err))
	}
	return links, err
}

// linkBase returns the last part of a link's target, "" where there is no link.
func (t tree) linkBase(name string) string {
	target, err := t.Readlink(name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}
