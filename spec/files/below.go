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

// Below returns the path below a root for a file's path on the node, for callers that write the file. If the root is
// not /, Below resolves links as the node does, so the returned path contains no links. Below keeps the names of files
// that do not exist yet.
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
			return filepath.Join(root, next, "\x00") // a file cannot have this name, so every operation on the path fails
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return filepath.Join(root, at)
}

// Content returns a file's content, or nil if the file does not exist.
func Content(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", path, Cause(err))
	}
	return content, nil
}

// Same reports whether two results of Content are equal. A missing file differs from an empty file.
func Same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// OnNode converts a path below a root to the path on the node.
func OnNode(root, name string) string {
	return path.Join("/", strings.TrimPrefix(name, filepath.Clean(root+"/")))
}
