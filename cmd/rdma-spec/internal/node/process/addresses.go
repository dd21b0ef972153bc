// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The addresses of a network namespace in its files: "|-- 10.0.0.9" and "/32 host LOCAL" in the next line, and 32
// digits.
var (
	ipv4 = regexp.MustCompile(`\|-- (\S+)\n\s+/32 host LOCAL`)
	ipv6 = regexp.MustCompile(`(?m)^([0-9a-f]{32}) `)
)

// ReadAddresses returns the addresses of a process's network namespace but the loopback ones.
func ReadAddresses(root string, pid int) (found []netip.Addr, err error) {
	p := Process{PID: pid}
	text, err := os.ReadFile(p.File(root, "net/fib_trie"))
	if err != nil {
		return nil, err
	}
	for _, form := range ipv4.FindAllStringSubmatch(string(text), -1) {
		if address, err := netip.ParseAddr(form[1]); err == nil {
			found = append(found, address)
		}
	}
	text, _ = os.ReadFile(p.File(root, "net/if_inet6")) // not there where IPv6 is off
	for _, form := range ipv6.FindAllStringSubmatch(string(text), -1) {
		digits, _ := hex.DecodeString(form[1]) // the form has checked them
		address, _ := netip.AddrFromSlice(digits)
		found = append(found, address)
	}
	found = slices.DeleteFunc(found, netip.Addr.IsLoopback)
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}

// device is an interface in a process's net/dev: "  eth0: 1296 16 0 …".
var device = regexp.MustCompile(`(?m)^ *([^\s:|]+):`)

// Interfaces returns the names of the interfaces of a process's network namespace.
func Interfaces(root string, pid int) (names []string) {
	text, _ := os.ReadFile(Process{PID: pid}.File(root, "net/dev")) // without it, none is known
	for _, form := range device.FindAllStringSubmatch(string(text), -1) {
		names = append(names, form[1])
	}
	return names
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
}

// gap is how many empty places in a row end the reading of a port's table. The kernel fills the lowest empty place, so
// that a gap is left by addresses that are gone. The tables of most HCAs have 256 places at most, that of Soft-RoCE has
// 1024.
const gap = 256

// GIDs returns the GIDs in files of a port's folder gids, of which a copy lacks empty ones. Whose they are is told by
// their addresses: a network namespace calls its interfaces as it likes.
func GIDs(files []string, read func(string) (string, error)) (table []GID, err error) {
	index := func(file string) int { n, _ := strconv.Atoi(path.Base(file)); return n }
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(index(a), index(b)) })
	empty := 0
	for _, file := range files {
		text, err := read(file)
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if empty++; err == nil && !address.IsUnspecified() {
			table, empty = append(table, GID{index(file), address.Unmap()}), 0
		}
		if empty == gap {
			break
		}
	}
	return table, nil
}
