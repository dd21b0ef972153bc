// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/containerd"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// Choose returns the node's containerd that pods use, or reports that pods use CRI-O. A name (NameContainerd or
// NameCRIO) or a configuration selects the runtime. Otherwise, Choose returns the runtime at the kubelet's socket, or
// else the only runtime that serves CRI. If several runtimes remain, it returns an error.
func Choose(ctx context.Context, found []containerd.Daemon, root, name, config string) (d containerd.Daemon,
	isCRIO bool, err error) {
	if name == NameCRIO {
		return d, true, nil
	}
	if config != "" {
		d, err = containerd.Choose(found, config, root)
		return d, false, err
	}
	mayBeCRIO := name == "" && HasCRIO(root)
	table := process.ReadTable(root)
	if endpoint := agents.Endpoint(table); endpoint != "" {
		var crio Runtime
		if mayBeCRIO && crio.readCRIO(table) == nil && process.SamePath(crio.Socket, endpoint) {
			return d, true, nil
		}
		for _, d := range found {
			if process.SamePath(d.Socket(ctx), endpoint) {
				d, err = containerd.Choose([]containerd.Daemon{d}, "", root)
				return d, false, err
			}
		}
		if len(found) > 0 {
			return d, false, fmt.Errorf("the kubelet uses %s, which is not the socket of a containerd or CRI-O daemon on "+
				"this node: if the program that listens on this socket forwards requests to containerd, select the "+
				"containerd daemon with --config", endpoint)
		}
	}
	serving := slices.DeleteFunc(slices.Clone(found), func(d containerd.Daemon) bool {
		all, _ := d.Files(ctx, nil) // an unreadable file turns off no plugins
		_, off := containerd.Last(all, func(tree map[string]any) bool {
			return containerd.Disables(tree, containerd.ServesCRI...)
		})
		return off
	})
	switch {
	case mayBeCRIO && len(serving) == 0:
		return d, true, nil
	case mayBeCRIO && installedCRIO(root):
		var names []string
		for _, d := range serving {
			names = append(names, fmt.Sprintf("%s (--runtime containerd --config %s)", d.Name, d.File()))
		}
		return d, false, fmt.Errorf("the node has CRI-O (--runtime crio) and %s: select the runtime that the kubelet uses",
			strings.Join(names, ", "))
	case len(serving) > 0:
		found = serving
	}
	d, err = containerd.Choose(found, "", root)
	return d, false, err
}
