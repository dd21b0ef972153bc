// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Places are where containerd's socket usually is. A node can have several containerds: k3s, RKE2, MicroK8s and k0s bring their own,
// and Docker uses containerd's.
var Places = []string{
	"/run/containerd/containerd.sock",               // containerd itself, also Docker's
	"/run/k3s/containerd/containerd.sock",           // k3s, RKE2
	"/var/snap/microk8s/common/run/containerd.sock", // MicroK8s
	"/run/k0s/containerd.sock",                      // k0s
}

// findSockets returns the paths of containerd's sockets that exist: the address, /path or unix:///path, if one is given, otherwise all of
// the usual places below a root; the root of a live node is "/". If there is none, the error names the places, and is fs.ErrNotExist.
func findSockets(address, root string) (sockets []string, err error) {
	candidates := candidates(address, root)
	var found []fs.FileInfo
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err != nil || info.Mode().Type() != fs.ModeSocket {
			continue
		}
		if slices.ContainsFunc(found, func(other fs.FileInfo) bool { return os.SameFile(info, other) }) {
			continue // a link to another place
		}
		found = append(found, info)
		sockets = append(sockets, c)
	}
	if sockets == nil {
		return nil, missing(candidates)
	}
	return sockets, nil
}

func candidates(address, root string) []string {
	if address != "" {
		return []string{strings.TrimPrefix(address, "unix://")}
	}
	below := make([]string, 0, len(Places))
	for _, p := range Places {
		below = append(below, filepath.Join(root, p))
	}
	return below
}

func missing(candidates []string) error {
	return fmt.Errorf("no socket of containerd at %s: name it with --containerd-address, and if this is a container, mount its folder: %w",
		strings.Join(candidates, ", "), fs.ErrNotExist)
}
