// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Holders lists the containers that have a device or an interface that is missing from the node's network namespace. It
// covers all runtimes that serve CRI.
type Holders struct {
	Own  []string // the containers that have the object, in their own network namespaces
	Node []string // the containers in the node's network namespace that should have the object
	// Maybe lists possible holders: containers that can open all devices, pods without a running container, and processes
	// outside containers.
	Maybe []string
}

// HoldersOf returns the containers that have a device of an HCA in a network namespace other than the node's. The error
// is the reason why other holders are unknown.
func (s *Snapshot) HoldersOf(device hca.Number) (h Holders, err error) {
	return s.holders(func(l Listed) (has, may bool) {
		for _, d := range l.Devices {
			has = has || d.Major == int64(device.Major) && d.Minor == int64(device.Minor)
		}
		return has || l.Inside != nil && slices.Contains(l.Inside.Devices, device), l.AllDevices
	})
}

// HoldersOfInterface returns the containers that have the interface of a RoCE port, by the addresses of its GIDs.
func (s *Snapshot) HoldersOfInterface(gids []process.GID) (h Holders, err error) {
	return s.holders(func(l Listed) (has, may bool) {
		if l.HostNetwork {
			return false, false
		}
		inside := s.inside(l, true)
		own, _ := inside.Own(gids)
		return len(own) > 0, !inside.Known || inside.Silent
	})
}

// holders checks for each running container whether it has, or might have, an object.
func (s *Snapshot) holders(has func(Listed) (has, may bool)) (h Holders, err error) {
	listing, err := s.Listing()
	switch {
	case err != nil:
		return h, err
	case len(listing.Runtimes) == 0:
		return h, errors.New("no container runtime responds")
	case len(listing.Skipped) > 0:
		return h, errors.New(strings.Join(listing.Skipped, "; "))
	}
	h.Maybe = slices.Clone(listing.Waiting)
	for _, l := range listing.Containers {
		name := fmt.Sprintf("%s/%s %s", l.Namespace, l.Pod, l.Name)
		if l.Problem != "" {
			return h, fmt.Errorf("container %s: %s", name, l.Problem)
		}
		switch has, may := has(l); {
		case has && l.HostNetwork:
			h.Node = append(h.Node, name)
		case has:
			h.Own = append(h.Own, name)
		case may && !l.HostNetwork:
			h.Maybe = append(h.Maybe, name)
		}
	}
	if len(h.Own) > 0 { // the object has only one holder
		return h, nil
	}
	others := listing.Strangers
	if !s.Archived {
		others = strangers(s.Root, listing.Containers)
	}
	for _, pid := range others {
		h.Maybe = append(h.Maybe, fmt.Sprintf("process %d, which is outside the containers of the queried runtimes", pid))
	}
	return h, nil
}
