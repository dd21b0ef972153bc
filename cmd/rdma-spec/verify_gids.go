// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// namespaceAddresses returns the addresses of the network namespace's interfaces, and the link-local addresses that the kernel makes of
// their MAC addresses for a GID table.
func namespaceAddresses() (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		if len(i.HardwareAddr) == 6 {
			found[linkLocal([6]byte(i.HardwareAddr))] = true
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", i.Name, err)
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				found[prefix.Addr().Unmap()] = true
			}
		}
	}
	return found, nil
}

// linkLocal returns the IPv6 link-local address that is made of a MAC address (RFC 4291, appendix A).
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// gidsOf says which of a port's GIDs belong to the network namespace. Those of RoCE are addresses of its interfaces. The names of netdevs
// in the GID table prove nothing: interfaces of other namespaces may have the same.
type gidsOf struct {
	name string // of HCA and port
	own  []string
}

// gids finds the GIDs that the container's network namespace has with RoCE. An InfiniBand port's belong to no namespace, and not all
// kernels list an iWARP HCA's.
func (v *verification) gids(held []heldHCA) {
	var ports []gidsOf
	others := false
	for _, h := range held {
		for _, p := range h.hca.Ports {
			switch {
			case !p.Active():
			case p.LinkLayer != "Ethernet" || h.hca.NodeType != "CA":
				others = true
			default:
				ports = append(ports, gidsOf{name: fmt.Sprintf("%s port %d", h.hca.Name, p.Number)})
				if !v.ownGIDs(p.GIDs, &ports[len(ports)-1]) {
					return
				}
			}
		}
		others = others || !h.known
	}
	usable := others || slices.ContainsFunc(ports, func(p gidsOf) bool { return len(p.own) > 0 })
	for _, p := range ports {
		switch {
		case len(p.own) > 0:
			v.add(checkGID, good, "GIDs of %s in this network namespace: %s", p.name, strings.Join(p.own, ", "))
		case usable:
			v.add(checkGID, note, "GIDs of %s: none belongs to this network namespace", p.name)
		default:
			v.fails(checkGID, causeNamespace, "GIDs of %s: none belongs to this network namespace, so RDMA_CM does not find the HCA, and programs report Failed to query GID: give the pod the HCA's netdev by macvlan or SR-IOV, or use hostNetwork", p.name)
		}
	}
}

// ownGIDs finds those of a port's GIDs that belong to the network namespace. It reports whether it could look.
func (v *verification) ownGIDs(all []hca.GID, port *gidsOf) bool {
	addresses, err := v.addresses()
	if err != nil {
		v.add(checkGID, unknown, "GIDs: the interfaces of this network namespace cannot be read: %v", err)
		return false
	}
	for _, g := range all {
		if address, err := netip.ParseAddr(g.GID); err == nil && addresses[address.Unmap()] {
			port.own = append(port.own, fmt.Sprintf("%d (%s, %s)", g.Index, address.Unmap(), orUnknown(g.Type)))
		}
	}
	return true
}
