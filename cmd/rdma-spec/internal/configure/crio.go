// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configure plans the changes of a node that are not in containerd's configuration: CRI-O's drop-in, the limits of units, and
// the plugin itself. It also restarts a daemon, and makes sure that its containers are still there.
package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/tomledit"
)

const crioNRI = `# Written by rdma-spec configure nri; rdma-spec configure nri --revert removes it.
[crio.nri]
enable_nri = true
nri_disable_connections = false
`

// HasCRIO reports whether CRI-O is installed below a root.
func HasCRIO(root string) bool {
	_, err := os.Stat(filepath.Join(root, crioFolder))
	return err == nil
}

// crioFolder has CRI-O's configuration.
const crioFolder = "etc/crio"

// CRIONRI plans that NRI is on in the CRI-O below a root, by a file of crio.conf.d. It is an error if a later file has another last word.
func CRIONRI(root string) (change.Plan, error) {
	folder := filepath.Join(root, crioFolder)
	if !HasCRIO(root) {
		return nil, fmt.Errorf("%s does not exist: CRI-O is not installed", folder)
	}
	ours := filepath.Join(folder, "crio.conf.d/90-rdma-spec-nri.conf")
	files, err := crioFiles(root)
	if err != nil {
		return nil, fmt.Errorf("%w: correct it first", err)
	}
	for key, off := range nriOff {
		for _, file := range slices.Backward(files) {
			value, said := tomledit.Lookup(file.tree, "crio", "nri", key)
			if !said || file.path <= ours {
				continue
			}
			if value == off {
				return nil, fmt.Errorf("%s says %s = %v, and CRI-O reads it after %s: change it there", file.path, key, value, ours)
			}
			break
		}
	}
	return change.Plan{{Path: ours, Content: []byte(crioNRI)}}, nil
}
