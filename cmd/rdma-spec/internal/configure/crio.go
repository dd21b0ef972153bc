// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configure plans the changes of a node that are not in containerd's configuration: CRI-O's drop-in, the limits
// of units, and the plugin itself. It also restarts a daemon, and makes sure that its containers are still there.
package configure

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

const crioNRI = `# Written by rdma-spec configure nri; rdma-spec configure nri --revert removes it.
[crio.nri]
enable_nri = true
nri_disable_connections = false
`

// CRIONRI plans that NRI is on in the CRI-O below a root, by a file of crio.conf.d: nothing where it is on without
// that file. It is an error if a later file has another last word.
func CRIONRI(ctx context.Context, root string) (change.Plan, error) {
	if !runtime.HasCRIO(root) {
		return nil, fmt.Errorf("CRI-O is not installed: %s does not exist", filepath.Join(root,
			filepath.Dir(places.CRIO.Config)))
	}
	ours := files.Below(root, places.CRIO.DropIns+"/90-rdma-spec-nri.conf")
	all, err := runtime.CRIOFiles(root)
	if err != nil {
		return nil, fmt.Errorf("%w: correct it first", err)
	}
	on, known := true, false
	for key, off := range runtime.CRIONRIOff {
		for _, file := range slices.Backward(all) {
			value, said := tomledit.Lookup(file.Tree, "crio", "nri", key)
			if file.Path == ours {
				on = false // without it, or so it was
			}
			if !said || file.Path == ours {
				continue
			}
			if value == off && file.Path > ours {
				return nil, fmt.Errorf("%s says %s = %v, and CRI-O reads it after %s: change it there", file.Path, key, value, ours)
			}
			on, known = on && value != off, known || key == "enable_nri"
			break
		}
	}
	if on && (known || crioEnables(ctx, root)) {
		return nil, nil
	}
	return change.Whole(change.File{Path: ours, Content: []byte(crioNRI)})
}

// crioEnables reports whether the installed CRI-O has NRI on by default, as since 1.30.
func crioEnables(ctx context.Context, root string) bool {
	for _, program := range places.CRIO.Programs {
		version, err := containerd.Binary(files.Below(root, program)).Version(ctx)
		var major, minor int
		if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); err == nil && n == 2 {
			return major > 1 || minor >= 30
		}
	}
	return false
}
