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

// crio returns the drop-in of the node's CRI-O, with the limits that it would replace. It is an error where another
// file would replace it in turn.
func (o generateOptions) crio(memlock spec.Limit) (text []byte, notes []string, err error) {
	said, err := runtime.ReadCRIO(o.root)
	if err != nil {
		return nil, nil, err
	}
	before, after := said.Around(o.to)
	if _, place := after.Last("runtime", "default_ulimits"); place != "" {
		return nil, nil, fmt.Errorf("%[1]s sets default_ulimits, and CRI-O reads it after %[2]s: add memlock to the "+
			"list in %[1]s", place, o.to)
	}
	list, place := before.Last("runtime", "default_ulimits")
	elements, _ := list.([]any) // ReadCRIO refuses another type
	var others []string
	for _, element := range elements {
		others = append(others, fmt.Sprint(element))
	}
	if len(others) > 0 {
		notes = []string{fmt.Sprintf("the generated default_ulimits replaces the list in %s, so it also contains "+
			"the limits from that list: %s", place,
			strings.Join(others, ", "))}
	}
	return platform.CRIO(memlock, others), notes, nil
}

// resolveDir returns a directory without links; as it is where it does not exist.
func resolveDir(dir string) string {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	return dir
}

// changes reports the handlers of the node that would change with the base spec that --to replaces. What configure
// wrote for a handler of its own, or what no runtime can use, loses nothing.
func (o generateOptions) changes(text []byte) error {
	now, err := os.ReadFile(o.to)
	if err != nil || bytes.Equal(now, text) {
		return nil // a file that cannot be read is not written over either
	}
	if _, err := baseline.Read(bytes.NewReader(now)); err != nil {
		return nil
	}
	var changed []string
	for _, d := range containerd.Find(o.root) {
		all, _ := d.Files(context.Background(), nil) // what it cannot read names nothing
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

// readOnly says what to do where a file of the node's /etc cannot be written because the node is immutable.
func (o generateOptions) readOnly(err error) error {
	absolute, failed := filepath.Abs(o.to)
	if !errors.Is(err, syscall.EROFS) || failed != nil ||
		!strings.HasPrefix(files.OnNode(resolveDir(o.root), absolute), "/etc/") {
		return err
	}
	return fmt.Errorf("%s: %s", err.Error(), platform.Immutable(o.root))
}
