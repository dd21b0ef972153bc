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

// KeptDir is the directory of the stored policies, below the node's root directory. Stored policies survive a reboot.
const KeptDir = "/var/lib/rdma-spec/inforce"

// Kept is the stored policy that was last in force in a deployment's plugin. The stored policy survives a reboot. The
// plugin uses the stored policy only while the plugin cannot read its own configuration. No program compares containers
// with the stored policy.
//
// The file contains the text of the configuration, without defaults. If the text contained defaults, an older plugin
// could not read a file from a newer plugin, because the file could contain defaults for keys that the older plugin
// does not know. The name of the file is the name of the deployment, so that no other deployment uses the file.
type Kept struct {
	// Root is the node's root directory, which contains the directory var.
	Root string
	// Deployment is the plugin's deployment: DaemonSet.NAMESPACE.NAME.
	Deployment string
}

func (k Kept) path() string { return filepath.Join(k.Root, KeptDir, k.Deployment) }

// Read reads the stored policy. The error is one line. If no policy was stored, the error is fs.ErrNotExist.
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

// Write replaces the stored policy if the text differs. Only a registered plugin can call Write.
func (k Kept) Write(text []byte) error {
	if there, err := k.read(); err == nil && bytes.Equal(there, text) {
		return nil
	}
	return atomicfile.Own(k.path(), text, 0o600, nil)
}
