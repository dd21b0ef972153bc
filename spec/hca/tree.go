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
	// maxAttribute is Linux's largest page size, in bytes. No sysfs attribute is longer than a page, and tar pads each
	// attribute to exactly one page.
	maxAttribute = 1 << 16
	// maxEntries limits the number of entries in a directory. The largest known directories, on nodes with thousands of
	// VFs and two management devices for each port, are much smaller.
	maxEntries = 1 << 16
)

// tree is a node's file system, or a directory in it.
type tree struct{ files.Tree }

func openTree(root string) (tree, error) {
	t, err := files.Open(root)
	return tree{t}, err
}

func (t tree) close() { _ = t.Close() }

// dir opens a directory as a separate tree. Links that lead out of the directory, such as device, can be followed only
// from the original tree.
func (t tree) dir(name string) (tree, error) {
	f, err := t.Dir(name)
	return tree{f}, files.Cause(err)
}

// list returns the names in a directory in natural order. If the directory does not exist, list returns no names and no
// error.
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

// links returns the targets of the links in a directory, by the links' names. If the directory does not exist, links
// returns no targets and no error.
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

// linkBase returns the last element of a link's target; "" if the link does not exist.
func (t tree) linkBase(name string) string {
	target, err := t.Readlink(name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}
