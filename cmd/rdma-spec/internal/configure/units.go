// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package configure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/editor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// unitDir is the directory of an administrator's units.
const unitDir = "etc/systemd/system"

// checkUnits returns an error if files cannot be restored, because they are enabled units or the hook of CDI files that
// are not ours. systemd would keep links to enabled units, and the units would continue to run.
func (o *Options) checkUnits(paths []string) error {
	dir := files.Below(o.Root, unitDir)
	var enabled []string
	for _, path := range paths {
		links, _ := filepath.Glob(filepath.Join(dir, "*.wants", filepath.Base(path))) // a bad pattern is the only error
		if len(links) > 0 && filepath.Dir(path) == dir {
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

// stillNamed returns a file that would be removed although a containerd's configuration still names it, and an error
// for the user. Without the file, containerd or its CRI plugin does not start. For example, nvidia-ctk copies the
// reference to runc's base spec to its own handlers.
func (o *Options) stillNamed(after containerd.Contents) (path string, err error) {
	all := slices.Clone(o.containerds())
	if d, err := o.daemon(context.Background()); err == nil { // that of --config
		all = append(all, d)
	}
	for _, d := range all {
		read, err := d.Files(context.Background(), after)
		if errors.As(err, new(syscall.Errno)) {
			return "", err // for any other error, the daemon does not start with the current files either
		}
		for path, content := range after {
			if content != nil {
				continue
			}
			name := regexp.MustCompile(`(?m)^[^#\n]*["']` + regexp.QuoteMeta(d.OnNode(path)) + `["']`)
			for _, file := range read {
				if !d.Rendered(file) && name.Match(file.Text) {
					return path, fmt.Errorf("%s refers to %s, without which containerd's CRI plugin does not load: "+
						"change the reference first", file.Path, path)
				}
			}
		}
	}
	return "", nil
}

// unrecorded returns the node's files that have names like our files, but are missing from the record.
func (o *Options) unrecorded(ctx context.Context, ledger *change.Ledger) (found []string) {
	var recorded []string
	for _, feature := range ledger.Features() {
		recorded = append(recorded, ledger.Paths(feature)...)
	}
	crio, _ := runtime.ReadCRIO(o.Root) // a configuration that cannot be read still has a directory
	dirs := []string{crio.DropIns, files.Below(o.Root, unitDir) + "/*.d"}
	for _, d := range o.containerds() {
		dirs = append(dirs, cmp.Or(d.DropIns, filepath.Join(filepath.Dir(d.File()), editor.Dir)))
		read, _ := d.Files(ctx, nil) // the files before an error
		for _, f := range read {
			dirs = append(dirs, filepath.Dir(f.Path))
		}
	}
	for _, dir := range dirs {
		paths, _ := filepath.Glob(filepath.Join(dir, "??-rdma-spec-*")) // a bad pattern is the only error
		for _, path := range paths {
			if !slices.Contains(slices.Concat(recorded, found), path) {
				found = append(found, path)
			}
		}
	}
	return found
}

// Unit returns the unit that runs a containerd on the node below a root. If the containerd is not running, Unit returns
// the unit that could run it. The unit is "" if it is unknown.
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
