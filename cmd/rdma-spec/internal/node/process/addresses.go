// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Link is an interface of a process's network namespace.
type Link struct {
	Name      string         `json:"name"`
	Addresses []netip.Addr   `json:"addresses,omitempty"` // IPv6 only
	Subnets   []netip.Prefix `json:"subnets,omitempty"`   // destinations of routes without a gateway; IPv4 first
	Gateway   bool           `json:"gateway,omitempty"`   // a route through the interface has a gateway
	Strict    bool           `json:"strict,omitempty"`    // rp_filter drops packets whose response would take another interface
}

// Patterns in the files of a network namespace: "|-- 10.0.0.9" with "/32 host LOCAL" in the next line, "Id 100:" above
// a policy routing table, and " eth0: 1296 16 0 …" in net/dev.
var (
	ipv4   = regexp.MustCompile(`\|-- (\S+)\n\s+/32 host LOCAL`)
	tables = regexp.MustCompile(`(?m)^Id [0-9]+:`)
	device = regexp.MustCompile(`(?m)^ *([^\s:|]+):`)
)

// readNetwork reads the interfaces of the process's network namespace, and all addresses except loopback addresses.
func (c *Inside) readNetwork(root string, p Process) error {
	trie, err := os.ReadFile(p.File(root, "net/fib_trie"))
	if err != nil {
		return err
	}
	text := func(file string) string {
		text, _ := os.ReadFile(p.File(root, "net/"+file)) // missing if the protocol is off
		return string(text)
	}
	c.PolicyRouting = tables.Match(trie)
	for _, form := range ipv4.FindAllStringSubmatch(string(trie), -1) {
		if address, err := netip.ParseAddr(form[1]); err == nil {
			c.Addresses = append(c.Addresses, address)
		}
	}
	for _, form := range device.FindAllStringSubmatch(text("dev"), -1) {
		c.Links = append(c.Links, Link{Name: form[1]})
	}
	for line := range strings.Lines(text("if_inet6")) { // address, index, length of the prefix, scope, flags, name
		fields := strings.Fields(line)
		if len(fields) != 6 {
			continue
		}
		digits, _ := hex.DecodeString(fields[0])
		if address, ok := netip.AddrFromSlice(digits); ok {
			c.Addresses = append(c.Addresses, address)
			l := c.link(fields[5])
			l.Addresses = append(l.Addresses, address)
		}
	}
	for line := range strings.Lines(text("route")) {
		var name string
		var to, gateway, flags, mask, number uint32
		if n, _ := fmt.Sscanf(line, "%s %x %x %x %d %d %d %x", &name, &to, &gateway, &flags, &number, &number, &number,
			&mask); n < 8 {
			continue // the header
		}
		l := c.link(name)
		l.Gateway = l.Gateway || gateway != 0
		if gateway == 0 {
			subnet := netip.AddrFrom4([4]byte(binary.LittleEndian.AppendUint32(nil, to))) // on all supported machines
			l.Subnets = append(l.Subnets, netip.PrefixFrom(subnet, bits.OnesCount32(mask)))
		}
	}
	// Destination and prefix length, source and prefix length, next hop, metric, two counters, flags, and name.
	for line := range strings.Lines(text("ipv6_route")) {
		fields := strings.Fields(line)
		if len(fields) != 10 {
			continue
		}
		digits, _ := hex.DecodeString(fields[0])
		to, ok := netip.AddrFromSlice(digits)
		length, err := strconv.ParseUint(fields[1], 16, 8)
		l := c.link(fields[9])
		switch {
		case !ok || err != nil || to.IsLinkLocalUnicast() || to.IsMulticast():
		case strings.Trim(fields[4], "0") != "": // IPv4 subnets win
			l.Gateway = l.Gateway || !slices.ContainsFunc(l.Subnets, func(s netip.Prefix) bool { return s.Addr().Is4() })
		case length > 0 && length < 128: // 128: an address of this machine
			l.Subnets = append(l.Subnets, netip.PrefixFrom(to, int(length)))
		}
	}
	c.Addresses = slices.DeleteFunc(c.Addresses, netip.Addr.IsLoopback)
	slices.SortFunc(c.Addresses, netip.Addr.Compare)
	c.Addresses = slices.Compact(c.Addresses)
	return nil
}

// link returns the interface with this name, or an empty interface.
func (c *Inside) link(name string) *Link {
	if i := slices.IndexFunc(c.Links, func(l Link) bool { return l.Name == name }); i >= 0 {
		return &c.Links[i]
	}
	return &Link{}
}

// LinkOf returns the interface that has the address of one of the GIDs, and the subnet of the GIDs. The interface is
// nil if it is unknown.
func (c *Inside) LinkOf(gids []GID) (link *Link, subnet netip.Prefix) {
	for i, l := range c.Links {
		if slices.ContainsFunc(gids, func(g GID) bool { return slices.Contains(l.Addresses, g.Address) }) {
			link = &c.Links[i]
		}
	}
	var near []*Link
	for i, l := range c.Links {
		at := slices.IndexFunc(l.Subnets, func(s netip.Prefix) bool {
			return s.Bits() > 0 && slices.ContainsFunc(gids, func(g GID) bool { return s.Contains(g.Address) })
		})
		if at >= 0 {
			near = append(near, &c.Links[i])
			subnet = l.Subnets[at]
		}
	}
	if link == nil && len(near) == 1 {
		link = near[0]
	}
	return link, subnet
}

// linkLocal returns the IPv6 link-local address for a MAC address (RFC 4291, appendix A). It returns false for the zero
// address of lo.
func linkLocal(text string) (address netip.Addr, ok bool) {
	mac, err := net.ParseMAC(strings.TrimSpace(text))
	if err != nil || len(mac) != 6 || [6]byte(mac) == [6]byte{} {
		return address, false
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]}), true
}

// GID is a used entry of a port's GID table.
type GID struct {
	Index   int
	Address netip.Addr
	Type    string // such as RoCE v2; "" if unknown
}

// gap is the number of consecutive empty entries after which GIDs stops reading a port's table. The kernel fills the
// lowest empty entry, so only removed addresses leave gaps. The tables of most HCAs have at most 256 entries. The table
// of Soft-RoCE has 1024 entries.
const gap = 256

// GIDs returns the GIDs of a port, given the port's directory in sysfs. A copy of a node lacks empty GIDs. The owner of
// a GID is identified by address, because a network namespace can rename its interfaces.
func GIDs(port string, match func(pattern string) ([]string, error),
	read func(name string) (string, error)) (table []GID, err error) {
	files, err := match(port + "/gids/*")
	if err != nil {
		return nil, err
	}
	index := func(file string) int { n, _ := strconv.Atoi(path.Base(file)); return n }
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(index(a), index(b)) })
	empty := 0
	for _, file := range files {
		text, err := read(file)
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		empty++
		if err == nil && !address.IsUnspecified() {
			kind, _ := read(port + "/gid_attrs/types/" + path.Base(file))
			table = append(table, GID{index(file), address.Unmap(), strings.TrimSpace(kind)})
			empty = 0
		}
		if empty == gap {
			break
		}
	}
	return table, nil
}

// Own returns the GIDs of a table that are addresses of the container. usable is true if one of them is not a
// link-local address, because RDMA_CM and NCCL do not use link-local addresses.
func (c *Inside) Own(table []GID) (own []GID, usable bool) {
	for _, g := range table {
		if slices.Contains(c.Addresses, g.Address) || slices.Contains(c.LinkLocal, g.Address) {
			own = append(own, g)
			usable = usable || !g.Address.IsLinkLocalUnicast()
		}
	}
	return own, usable
}
