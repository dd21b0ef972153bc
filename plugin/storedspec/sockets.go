// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package storedspec

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/storedspec/places"
)

// findSockets returns the paths of containerd's sockets that exist: the address, /path or unix:///path, if one is
// given, otherwise all of the usual places below a root; the root of a live node is "/". If there is none, the error
// names the places, and is fs.ErrNotExist.
func findSockets(address, root string) (sockets []string, err error) {
	candidates := places.Sockets(root, places.Containerds...)
	if address != "" {
		candidates = []string{strings.TrimPrefix(address, "unix://")}
	}
	if sockets = places.Present(candidates); sockets == nil {
		return nil, fmt.Errorf("no socket of containerd at %s: name it with --containerd-address, and if this is a "+
			"container, mount its folder: %w",
			strings.Join(candidates, ", "), fs.ErrNotExist)
	}
	return sockets, nil
}
