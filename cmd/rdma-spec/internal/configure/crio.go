// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configure plans the changes of a node that are not in containerd's configuration: CRI-O's drop-in, the limits
// of units, and the plugin itself. It also restarts a daemon, and makes sure that its containers are still there.
package configure

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/tomledit"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

const crioNRI = `# Written by rdma-spec configure nri; rdma-spec configure nri --revert removes it.
[crio.nri]
enable_nri = true
nri_disable_connections = false
`

// CRIONRI plans that NRI is on in the CRI-O below a root, by a file of crio.conf.d. It is an error if a later file has
// another last word.
func CRIONRI(root string) (change.Plan, error) {
	if !runtime.HasCRIO(root) {
		return nil, fmt.Errorf("%s does not exist: CRI-O is not installed",
			filepath.Join(root, filepath.Dir(places.CRIO.Config)))
	}
	ours := filepath.Join(root, places.CRIO.DropIns, "90-rdma-spec-nri.conf")
	files, err := runtime.CRIOFiles(root)
	if err != nil {
		return nil, fmt.Errorf("%w: correct it first", err)
	}
	for key, off := range runtime.CRIONRIOff {
		for _, file := range slices.Backward(files) {
			value, said := tomledit.Lookup(file.Tree, "crio", "nri", key)
			if !said || file.Path <= ours {
				continue
			}
			if value == off {
				return nil, fmt.Errorf("%s says %s = %v, and CRI-O reads it after %s: change it there", file.Path, key, value, ours)
			}
			break
		}
	}
	return change.Whole(change.File{Path: ours, Content: []byte(crioNRI)})
}
