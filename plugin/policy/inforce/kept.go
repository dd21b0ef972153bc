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

// KeptDir is the directory of the policies that survive a reboot, below the node's root.
const KeptDir = "/var/lib/rdma-spec/inforce"

// Kept is the policy that a deployment's plugin last had in force, stored where it survives a reboot. Only that plugin
// uses it, while it cannot read its own configuration; no program compares containers with it.
//
// The file is the configuration as it was given, without defaults. An older plugin can therefore read what a newer one
// stored: it contains no keys from defaults that the older one does not know. The file is named after the deployment,
// so that no other deployment uses it.
type Kept struct {
	// Root is the node's root, which contains var.
	Root string
	// Deployment is the plugin's deployment: DaemonSet.NAMESPACE.NAME.
	Deployment string
}

func (k Kept) path() string { return filepath.Join(k.Root, KeptDir, k.Deployment) }

// Read reads the policy. The error is one line, and fs.ErrNotExist if no policy was stored.
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

// Write replaces the stored policy unless the text is the same. Only a registered plugin can call it.
func (k Kept) Write(text []byte) error {
	if there, err := k.read(); err == nil && bytes.Equal(there, text) {
		return nil
	}
	return atomicfile.Own(k.path(), text, 0o600, nil)
}
