// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// unitFolder is where an administrator's units are.
const unitFolder = "etc/systemd/system"

// blocked reports why files cannot be restored: they are units that are enabled, to which systemd would keep links, and
// which would run on, or the hook of CDI files that are not ours.
func (o *Options) blocked(paths []string) error {
	folder := files.Below(o.Root, unitFolder)
	var enabled []string
	for _, path := range paths {
		links, _ := filepath.Glob(filepath.Join(folder, "*.wants", filepath.Base(path))) // a bad pattern is the only error
		if len(links) > 0 && filepath.Dir(path) == folder {
			enabled = append(enabled, filepath.Base(path))
		}
		if _, err := cdi.Naming(o.Root, files.OnNode(o.Root, path)); err != nil {
			return err
		}
	}
	if len(enabled) == 0 {
		return nil
	}
	are := map[bool]string{false: "is", true: "are"}[len(enabled) > 1]
	return fmt.Errorf("%s %s enabled: run systemctl disable --now %s first", strings.Join(enabled, ", "), are,
		strings.Join(enabled, " "))
}

// Unit returns the unit of the node below a root that runs a containerd or, where it does not run, the one that could;
// "" where that is unknown.
func Unit(root string, d containerd.Daemon) string {
	if unit := d.Process.Unit(root); unit != "" && process.HasUnit(root, unit) {
		return unit
	}
	installed := slices.DeleteFunc(slices.Clone(d.Units), func(name string) bool { return !process.HasUnit(root, name) })
	if len(installed) != 1 {
		return ""
	}
	return installed[0]
}
