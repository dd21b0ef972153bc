// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configure plans the changes of a node that are not in containerd's configuration: CRI-O's drop-in, the limits of units, and
// the plugin itself. It also restarts a daemon, and makes sure that its containers are still there.
package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/tomledit"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/oserror"
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

// CRIONRI plans that NRI is on in the CRI-O below a root. CRI-O reads crio.conf and then all files of crio.conf.d, in the order of their
// names, and the last word counts.
func CRIONRI(root string) (change.Plan, error) {
	folder := filepath.Join(root, crioFolder)
	if !HasCRIO(root) {
		return nil, fmt.Errorf("%s does not exist: CRI-O is not installed", folder)
	}
	ours := filepath.Join(folder, "crio.conf.d/90-rdma-spec-nri.conf")
	entries, err := os.ReadDir(filepath.Dir(ours))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", filepath.Dir(ours), oserror.Reason(err))
	}
	files := []string{filepath.Join(folder, "crio.conf")}
	for _, entry := range entries {
		if !entry.IsDir() {
			files = append(files, filepath.Join(filepath.Dir(ours), entry.Name()))
		}
	}
	for _, file := range slices.Backward(files) {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, oserror.Reason(err))
		}
		tree, err := tomledit.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: correct it first", file, err)
		}
		for key, off := range map[string]any{"enable_nri": false, "nri_disable_connections": true} {
			if value, said := tomledit.Lookup(tree, "crio", "nri", key); said && value == off && file > ours {
				return nil, fmt.Errorf("%s says %s = %v, and CRI-O reads it after %s: change it there", file, key, value, ours)
			}
		}
	}
	return change.Plan{{Path: ours, Content: []byte(crioNRI)}}, nil
}
