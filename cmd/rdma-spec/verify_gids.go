// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// portGIDs are the GIDs of a port that belong to the network namespace.
type portGIDs struct {
	port string   // with its HCA
	own  []string // each with its index and its type
}

// gids finds the GIDs that the container's network namespace has with RoCE. They are addresses of its interfaces. The names of netdevs in
// the GID table prove nothing: interfaces of other namespaces may have the same. An InfiniBand port's GIDs belong to no namespace, and not
// all kernels list those of an iWARP HCA.
func (v *verification) gids(held []heldHCA) {
	addresses, err := v.addresses()
	if err != nil {
		v.add(checkGID, unknown, "GIDs: the interfaces of this network namespace cannot be read: %v", err)
		return
	}
	var ports []portGIDs
	usable := false // as far as can be told
	for _, h := range held {
		usable = usable || !h.known
		for _, p := range h.hca.Ports {
			switch {
			case !p.Active():
			case p.LinkLayer != "Ethernet" || h.hca.NodeType != "CA":
				usable = true
			default:
				folder := filepath.Join(v.root, "sys/class/infiniband", h.hca.Name, "ports", strconv.Itoa(p.Number))
				found := portGIDs{fmt.Sprintf("%s port %d", h.hca.Name, p.Number), ownGIDs(folder, addresses)}
				ports, usable = append(ports, found), usable || len(found.own) > 0
			}
		}
	}
	for _, p := range ports {
		switch {
		case len(p.own) > 0:
			v.add(checkGID, good, "GIDs of %s in this network namespace: %s", p.port, strings.Join(p.own, ", "))
		case usable:
			v.add(checkGID, note, "GIDs of %s: none belongs to this network namespace", p.port)
		default:
			v.fails(checkGID, causeNamespace, "GIDs of %s: none belongs to this network namespace, so RDMA_CM does not find the HCA, and programs report Failed to query GID: give the pod the HCA's netdev by macvlan or SR-IOV, or use hostNetwork", p.port)
		}
	}
}

// gap is how many empty entries in a row end the reading of a port's table. The kernel fills the lowest empty entry, so that a gap is left
// by addresses that are gone. The tables of most HCAs have 256 entries at most, that of Soft-RoCE has 1024.
const gap = 256

// ownGIDs returns those GIDs of a port that are among some addresses.
func ownGIDs(port string, addresses map[netip.Addr]bool) (own []string) {
	for i, empty := 0, 0; empty < gap; i++ {
		index := strconv.Itoa(i)
		gid, err := os.ReadFile(filepath.Join(port, "gids", index))
		if errors.Is(err, fs.ErrNotExist) {
			break // the table has no more entries
		}
		empty++
		address, err := netip.ParseAddr(strings.TrimSpace(string(gid)))
		if err == nil && !address.IsUnspecified() {
			empty = 0
		}
		if err == nil && addresses[address.Unmap()] {
			own = append(own, fmt.Sprintf("%d (%s, %s)", i, address.Unmap(), orUnknown(attribute(filepath.Join(port, "gid_attrs/types", index)))))
		}
	}
	return own
}
