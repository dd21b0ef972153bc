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
	Addresses []netip.Addr   `json:"addresses,omitempty"` // of IPv6
	Subnets   []netip.Prefix `json:"subnets,omitempty"`   // a route without a gateway leads there; IPv4 first
	Gateway   bool           `json:"gateway,omitempty"`   // a route by it has a gateway
	Strict    bool           `json:"strict,omitempty"`    // rp_filter drops what would not be answered by it
}

// What the files of a network namespace have: "|-- 10.0.0.9" and "/32 host LOCAL" in the next line, "Id 100:" above a
// table of policy routing, and in net/dev "  eth0: 1296 16 0 …".
var (
	ipv4   = regexp.MustCompile(`\|-- (\S+)\n\s+/32 host LOCAL`)
	tables = regexp.MustCompile(`(?m)^Id [0-9]+:`)
	device = regexp.MustCompile(`(?m)^ *([^\s:|]+):`)
)

// readNetwork reads the interfaces of the process's network namespace, and all addresses but the loopback ones.
func (c *Inside) readNetwork(root string, p Process) error {
	trie, err := os.ReadFile(p.File(root, "net/fib_trie"))
	if err != nil {
		return err
	}
	text := func(file string) string {
		text, _ := os.ReadFile(p.File(root, "net/"+file)) // not there where the protocol is off
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
			continue // the head
		}
		l := c.link(name)
		l.Gateway = l.Gateway || gateway != 0
		if gateway == 0 {
			subnet := netip.AddrFrom4([4]byte(binary.LittleEndian.AppendUint32(nil, to))) // as all our machines have it
			l.Subnets = append(l.Subnets, netip.PrefixFrom(subnet, bits.OnesCount32(mask)))
		}
	}
	// Destination, length of its prefix, source and its length, next hop, metric, two counters, flags, and name.
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
		case strings.Trim(fields[4], "0") != "": // what has IPv4 as well is judged by that
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

// link returns the interface of a name, or an empty one.
func (c *Inside) link(name string) *Link {
	if i := slices.IndexFunc(c.Links, func(l Link) bool { return l.Name == name }); i >= 0 {
		return &c.Links[i]
	}
	return &Link{}
}

// LinkOf returns the interface that has one of the addresses of some GIDs, nil where it cannot be told, and their
// subnet.
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

// linkLocal returns the IPv6 link-local address that is made of a MAC address (RFC 4291, appendix A). lo has one of
// zeros.
func linkLocal(text string) (address netip.Addr, ok bool) {
	mac, err := net.ParseMAC(strings.TrimSpace(text))
	if err != nil || len(mac) != 6 || [6]byte(mac) == [6]byte{} {
		return address, false
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]}), true
}

// GID is a place of a port's table that is taken.
type GID struct {
	Index   int
	Address netip.Addr
	Type    string // RoCE v2; "" where it is not known
}

// gap is how many empty places in a row end the reading of a port's table. The kernel fills the lowest empty place, so
// that a gap is left by addresses that are gone. The tables of most HCAs have 256 places at most, that of Soft-RoCE has
// 1024.
const gap = 256

// GIDs returns the GIDs of a port, whose directory in sysfs is given. A copy lacks empty ones. Whose they are is told
// by their addresses: a network namespace calls its interfaces as it likes.
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

// Own returns those GIDs of a table that are addresses of the container, and whether one of them is more than the
// link-local address that every interface has: RDMA_CM and NCCL use no other.
func (c *Inside) Own(table []GID) (own []GID, usable bool) {
	for _, g := range table {
		if slices.Contains(c.Addresses, g.Address) || slices.Contains(c.LinkLocal, g.Address) {
			own = append(own, g)
			usable = usable || !g.Address.IsLinkLocalUnicast()
		}
	}
	return own, usable
}
