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
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/baseline"
	"github.com/rdma-spec/rdma-spec/spec/files"
	"github.com/rdma-spec/rdma-spec/spec/platform"
)

// crio returns the drop-in of the node's CRI-O, with the limits that it would replace. It is an error where another
// file would replace it in turn.
func (o generateOptions) crio(memlock spec.Limit) (text []byte, notes []string, err error) {
	all, err := runtime.CRIOFiles(o.root)
	if err != nil {
		return nil, nil, err
	}
	target := o.to
	if absolute, err := filepath.Abs(o.to); o.to != "" && err == nil {
		target = filepath.Join(real(filepath.Dir(absolute)), filepath.Base(absolute))
	}
	folder := real(files.Below(o.root, places.CRIO.DropIns))
	var before []runtime.CRIOFile
	for _, f := range all {
		path := filepath.Join(real(filepath.Dir(f.Path)), filepath.Base(f.Path))
		_, file := runtime.CRIOLast([]runtime.CRIOFile{f}, "runtime", "default_ulimits")
		later := filepath.Dir(target) == folder && filepath.Dir(path) == folder && path > target
		switch {
		case path == target:
		case later && file != "":
			return nil, nil, fmt.Errorf("%s sets default_ulimits, and CRI-O reads it after %s: add the memlock to the list "+
				"there", f.Path, o.to)
		default:
			before = append(before, f)
		}
	}
	list, file := runtime.CRIOLast(before, "runtime", "default_ulimits")
	elements, _ := list.([]any) // CRIOFiles refuses another type
	var others []string
	for _, element := range elements {
		others = append(others, fmt.Sprint(element))
	}
	if len(others) > 0 {
		notes = []string{fmt.Sprintf("default_ulimits has the limits of %s as well, which it replaces: %s", file,
			strings.Join(others, ", "))}
	}
	return platform.CRIO(memlock, others), notes, nil
}

// real returns a folder without links; as it is where it does not exist.
func real(folder string) string {
	if resolved, err := filepath.EvalSymlinks(folder); err == nil {
		folder = resolved
	}
	if absolute, err := filepath.Abs(folder); err == nil {
		folder = absolute
	}
	return folder
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
	return fmt.Errorf("%s is the base_runtime_spec of %s, and all containers of that would change: name another file, or "+
		"write it with --force", o.to, strings.Join(changed, ", "))
}

// readOnly says what to do where a file of the node's /etc cannot be written because the node is immutable.
func (o generateOptions) readOnly(err error) error {
	absolute, failed := filepath.Abs(o.to)
	if !errors.Is(err, syscall.EROFS) || failed != nil ||
		!strings.HasPrefix(files.OnNode(real(o.root), absolute), "/etc/") {
		return err
	}
	return fmt.Errorf("%s: %s", err.Error(), platform.Immutable(o.root))
}
