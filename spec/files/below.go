// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Below returns the path of a name of the node below a root, for who has to write there. Links of a root other than /
// are resolved as on the node, so no part of the path is one; what does not exist yet is as it is named.
func Below(root, name string) string {
	root = filepath.Clean(root + "/")
	if root == "/" {
		return path.Join("/", name)
	}
	at := "/"
	links := 0
	for rest := strings.Split(name, "/"); len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(filepath.Join(root, next))
		switch {
		case err != nil: // not a link
			at = next
			continue
		case path.IsAbs(target):
			at = "/"
		}
		links++
		if links > maxLinks {
			return filepath.Join(root, next, "\x00") // no file has such a name
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return filepath.Join(root, at)
}

// Content returns what a file has, by its path, and nil where there is none.
func Content(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", path, Cause(err))
	}
	return content, nil
}

// Same reports whether two contents of a file, nil where there is none, are the same.
func Same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// OnNode returns the name that a path below a root has on the node.
func OnNode(root, name string) string {
	return path.Join("/", strings.TrimPrefix(name, filepath.Clean(root+"/")))
}
