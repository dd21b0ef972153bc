// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configure implements rdma-spec configure. It plans the changes to a node outside containerd's configuration:
// CRI-O's drop-in, the limits of systemd units, and the plugin itself. It also restarts a daemon, and checks that the
// daemon's containers are still running. Package editor plans the changes to containerd's configuration, and package
// change makes all changes.
package configure

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// crioDropIn is the name of the file in the directory of CRI-O's drop-ins.
const crioDropIn = "90-rdma-spec-nri.conf"

const crioNRI = `# Written by rdma-spec configure nri to turn on NRI in CRI-O.
# To remove this file, run rdma-spec configure nri --revert.
[crio.nri]
enable_nri = true
nri_disable_connections = false
`

// CRIONRI plans to turn on NRI in the CRI-O below a root with a file in crio.conf.d. If NRI is on without that file,
// the plan is empty. If a later file turns off NRI, CRIONRI returns an error.
func CRIONRI(ctx context.Context, root string) (change.Plan, error) {
	if !runtime.HasCRIO(root) {
		return nil, fmt.Errorf("CRI-O is not installed: %s does not exist", filepath.Join(root,
			filepath.Dir(places.CRIO.Config)))
	}
	said, err := runtime.ReadCRIO(root)
	if err != nil {
		return nil, fmt.Errorf("%w; correct the error first", err)
	}
	ours := filepath.Join(said.DropIns, crioDropIn)
	before, after := said.Around(ours)
	on := true
	known := false
	for key, off := range runtime.CRIONRIOff {
		value, place := after.Last("nri", key)
		if value == off {
			return nil, fmt.Errorf("%[1]s, which CRI-O reads after %[4]s, sets %[2]s = %[3]v: change the value "+
				"in %[1]s", place, key, value, ours)
		}
		if place == "" {
			on = on && !containerd.Exists(ours) // without our file, or as before our file
			value, place = before.Last("nri", key)
		}
		on = on && value != off
		known = known || key == "enable_nri" && place != ""
	}
	if on && (known || crioEnables(ctx, root)) {
		return nil, nil
	}
	return change.Whole(change.File{Path: ours, Content: []byte(crioNRI)})
}

// crioEnables reports whether the installed CRI-O turns on NRI by default, as CRI-O does since 1.30.
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
