// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// places are where containerd's socket usually is, with whose containerd it is.
var places = []string{
	"/run/containerd/containerd.sock",               // containerd itself
	"/run/k3s/containerd/containerd.sock",           // k3s, RKE2
	"/var/snap/microk8s/common/run/containerd.sock", // MicroK8s
	"/run/k0s/containerd.sock",                      // k0s
}

// Find gives the path of containerd's socket: the address, /path or unix:///path, if one is given, else the first of the usual
// places below a root that holds a socket; the root of a live node is "/". The error says where it was looked for, and is
// fs.ErrNotExist.
func Find(address, root string) (socket string, err error) {
	candidates := candidates(address, root)
	for _, c := range candidates {
		if info, err := os.Stat(c); err == nil && info.Mode().Type() == fs.ModeSocket {
			return c, nil
		}
	}
	return "", missing(candidates)
}

// possible says why Find cannot become successful: there is no folder for a socket to appear in.
func possible(address, root string) error {
	candidates := candidates(address, root)
	for _, c := range candidates {
		if info, err := os.Stat(filepath.Dir(c)); err == nil && info.IsDir() {
			return nil
		}
	}
	return missing(candidates)
}

func candidates(address, root string) []string {
	if address != "" {
		return []string{strings.TrimPrefix(address, "unix://")}
	}
	below := make([]string, 0, len(places))
	for _, p := range places {
		below = append(below, filepath.Join(root, p))
	}
	return below
}

func missing(candidates []string) error {
	return fmt.Errorf("no socket of containerd at %s: name it with --containerd-address, and if this is a container, mount its folder: %w",
		strings.Join(candidates, ", "), fs.ErrNotExist)
}
