// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package generate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// crio returns a drop-in for the node's CRI-O, including the limits that the drop-in would otherwise replace. If
// another file would replace the drop-in's limits, crio returns an error.
func (o generateOptions) crio(memlock spec.Limit) (text []byte, notes []string, err error) {
	said, err := runtime.ReadCRIO(o.root)
	if err != nil {
		return nil, nil, err
	}
	before, after := said.Around(o.to)
	if _, place := after.Last("runtime", "default_ulimits"); place != "" {
		return nil, nil, fmt.Errorf("%[1]s, which CRI-O reads after %[2]s, sets default_ulimits: add memlock to the "+
			"list in %[1]s", place, o.to)
	}
	list, place := before.Last("runtime", "default_ulimits")
	elements, _ := list.([]any) // ReadCRIO refuses another type
	var others []string
	for _, element := range elements {
		others = append(others, fmt.Sprint(element))
	}
	if len(others) > 0 {
		notes = []string{fmt.Sprintf("the generated default_ulimits replaces the list in %s, and therefore also contains "+
			"the limits from that list: %s", place, strings.Join(others, ", "))}
	}
	return platform.CRIO(memlock, others), notes, nil
}

// resolveDir returns a directory's path without links. If the directory does not exist, the links remain.
func resolveDir(dir string) string {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	return dir
}

// changes returns an error with the node's handlers that use the base spec that --to replaces. It ignores base specs
// that configure wrote for its own handlers, and base specs that no runtime can use.
func (o generateOptions) changes(text []byte) error {
	now, err := os.ReadFile(o.to)
	if err != nil || bytes.Equal(now, text) {
		return nil // a file that cannot be read cannot be overwritten either
	}
	if _, err := baseline.Read(bytes.NewReader(now)); err != nil {
		return nil
	}
	var changed []string
	for _, d := range containerd.Find(o.root) {
		all, _ := d.Files(context.Background(), nil) // ignore files that cannot be read
		for _, handler := range d.Naming(all, o.to) {
			if filepath.Base(o.to) != "rdma-spec-"+handler+".json" {
				changed = append(changed, handler)
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return fmt.Errorf("%[1]s is the base_runtime_spec of %[2]s, so the change would affect all containers of %[2]s: "+
		"choose another file, or use --force", o.to, strings.Join(changed, ", "))
}

// readOnly adds a fix to the error if the node is immutable, so that a file in its /etc cannot be written.
func (o generateOptions) readOnly(err error) error {
	absolute, failed := filepath.Abs(o.to)
	if !errors.Is(err, syscall.EROFS) || failed != nil ||
		!strings.HasPrefix(files.OnNode(resolveDir(o.root), absolute), "/etc/") {
		return err
	}
	return fmt.Errorf("%s: %s", err.Error(), platform.Immutable(o.root))
}
