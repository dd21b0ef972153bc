// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package inforce

import (
	"bytes"
	"io"
	"path/filepath"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/files/atomicfile"
)

// KeptDir is the directory of the policies that outlive a reboot, below the node's root.
const KeptDir = "/var/lib/rdma-spec/inforce"

// Kept is the policy that the plugin of a deployment last had in force, where a reboot does not take it. It is for that
// plugin alone, which goes on with it while its own configuration cannot be read: nobody judges containers by it.
//
// The file is the configuration as it was given: an older plugin reads what a newer one kept, since no key has been
// filled in that it does not know. Its name is the deployment's, so that no other one can go on with it.
type Kept struct {
	// Root is the directory that has the node's var.
	Root string
	// Deployment is what the plugin belongs to: DaemonSet.NAMESPACE.NAME.
	Deployment string
}

func (k Kept) path() string { return filepath.Join(k.Root, KeptDir, k.Deployment) }

// Read reads the policy. The error is a single line, and fs.ErrNotExist where none was ever in force.
func (k Kept) Read() (*InForce, error) {
	text, err := k.read()
	if err != nil {
		return nil, err
	}
	p, err := policy.FromText(text)
	if err != nil {
		return nil, unreadable(k.path(), err)
	}
	return &InForce{Policy: p, Source: k.path(), Path: k.path()}, nil
}

func (k Kept) read() ([]byte, error) {
	file, err := openTrusted(k.path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading
	return io.ReadAll(file)
}

// Write replaces the text of the policy, unless it is there already. Only a registered plugin may call it.
func (k Kept) Write(text []byte) error {
	if there, err := k.read(); err == nil && bytes.Equal(there, text) {
		return nil
	}
	return atomicfile.Own(k.path(), text, 0o600, nil)
}
