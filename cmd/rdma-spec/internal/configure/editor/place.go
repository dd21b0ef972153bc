// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package editor

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/record"
)

// Dir is the directory of our own files, next to the configuration.
const Dir = "rdma-spec.d"

// readOnly ends the message about a file that cannot be written.
const readOnly = " is on a read-only file system"

// place is a possible place for a change.
type place struct {
	files []string // the files to write: one of our own files, or the files that get the same block
	block bool
	by    string // the file that gets an import of our own file's directory; empty if it is already imported
}

// places returns the places for a change, with the best place first, and the reasons why other places are unfit. The
// best places are a file of our own in a directory that is already imported, and a file in our own directory, which we
// import. The last resort is our block in a file of others. In containerd 1.x, a file of our own would replace the rest
// of CRI's section, unless the platform merges it.
func (w *writing) places(ctx context.Context, g record.Goal, files []containerd.File, ways [][]set) (all []place,
	unfit []string, err error) {
	source, err := w.Source(ctx, w.staged)
	if err != nil {
		return nil, nil, err
	}
	old := containerd.IsOld(w.Goal.Version)
	if !old || g.Feature == goal.NRI || w.DropIns != "" {
		all = w.ownFiles("rdma-spec-"+strings.ReplaceAll(g.Feature, " ", "-")+".toml", source, files)
	}
	if w.DropIns == "" && (old || w.Template != "") {
		all = append(all, place{files: []string{source}, block: true})
	}
	for _, file := range slices.Backward(files[1:]) {
		sets := slices.ContainsFunc(ways, func(way []set) bool { return containerd.Sets(way[0].path[:2]...)(file.Tree) })
		if old && w.DropIns == "" && sets { // a tool can regenerate this file from the source
			all = append(all, place{files: []string{file.Path, source}, block: true},
				place{files: []string{file.Path}, block: true})
		}
	}
	return slices.DeleteFunc(all, func(p place) bool {
		return slices.ContainsFunc(append([]string{p.by}, p.files...), func(path string) bool {
			why := w.unfit(path)
			if why != "" && !slices.Contains(unfit, why) {
				unfit = append(unfit, why)
			}
			return why != ""
		})
	}), unfit, nil
}

// ownFiles returns the places for a file of our own.
func (w *writing) ownFiles(name, source string, files []containerd.File) (all []place) {
	own := func(dir, name, by string) {
		all = append(all, place{files: []string{w.Below(filepath.Join(dir, name))}, by: by})
	}
	if w.DropIns != "" { // the platform reads its files in the order of their names
		own(w.DropIns, "90-"+name, "")
		own(w.DropIns, "zz-"+name, "")
		return all
	}
	name = "90-" + name
	ours := w.Below(filepath.Join(w.Root, filepath.Dir(w.Config), Dir))
	for _, f := range files {
		for _, pattern := range f.Imports() {
			dir, base := filepath.Split(pattern)
			takes, _ := filepath.Match(base, name)                // an invalid pattern matches nothing
			isOurs := w.Below(filepath.Join(w.Root, dir)) == ours // each of our files has this import
			if takes && !isOurs && strings.Contains(base, "*") && !strings.ContainsAny(dir, `*?[\`) {
				own(filepath.Join(w.Root, dir), name, "")
			}
		}
	}
	template, _ := w.staged.Read(source) // a file that cannot be read is not written
	if w.Template == "" || template != nil && !containerd.IncludesBase(template) {
		own(ours, name, source)
	}
	for _, f := range files[1:] {
		isOurs := strings.Contains(f.Name, "rdma-spec") || slices.ContainsFunc(w.planned, func(planned change.File) bool {
			return planned.Path == f.Path && planned.Parts == nil
		})
		if !isOurs {
			own(ours, name, f.Path)
		}
	}
	return all
}

// unfit returns the reason why a file cannot be written; "" if it can.
func (w *writing) unfit(path string) string {
	name := w.OnNode(path)
	switch {
	case path == "":
	case strings.HasPrefix(name, "/nix/store/"):
		return name + " is built by Nix"
	case strings.HasPrefix(name, "/run/"):
		return name + " does not survive a reboot"
	}
	for dir := filepath.Dir(path); path != ""; dir = filepath.Dir(dir) {
		err := unix.Access(dir, unix.W_OK)
		if errors.Is(err, unix.EROFS) {
			return name + readOnly
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			break
		}
	}
	return ""
}
