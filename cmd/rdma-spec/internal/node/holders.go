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

// Holders are the containers that have something that is in none of the node's own network namespace. All are of the
// runtimes that serve CRI.
type Holders struct {
	Own  []string // that have it, in a network of their own
	Node []string // that should have it, in the node's network, where it is not
	// Maybe may have it: those that may open all devices, pods none of whose containers runs now, and processes in none.
	Maybe []string
}

// HoldersOf returns the containers that have a device of an HCA, which is in another network namespace than the node's.
// The error says why others are unknown.
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

// holders asks of each container that runs whether it has something, or may have it.
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
	if len(h.Own) > 0 { // it has one place
		return h, nil
	}
	others := listing.Strangers
	if !s.Archived {
		others = strangers(s.Root, listing.Containers)
	}
	for _, pid := range others {
		h.Maybe = append(h.Maybe, fmt.Sprintf("process %d, which is not in a container of these runtimes", pid))
	}
	return h, nil
}
