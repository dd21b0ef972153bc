// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	classNet = "sys/class/net"
	// maxNetdev is the length of a netdev's name (IFNAMSIZ without its zero).
	maxNetdev = 15
	// maxStacked bounds how many netdevs are stacked on one.
	maxStacked = 64
)

// netdevs are read from where the kernel hangs them: below the HCA's own device, and what is stacked on those. Never
// from the GID table: that names netdevs of other network namespaces too, by names that pods choose, whereas sysfs has
// only those of its own namespace, and links between them only.
type netdevs struct {
	tree
	problems *problems
	shared   *shared
}

// shared is what a node's HCAs share.
type shared struct {
	buses  map[string]int        // how many HCAs are a part of each device, by HCA.Bus
	table  map[string]deviceNode // of a copy
	once   sync.Once
	byGUID map[string][]string // the directories of netdevs, by the GUID that eui64 makes of their addresses
}

// addNetdevs sets the netdevs of the ports of the HCA at the path at.
func (t tree) addNetdevs(at string, h *HCA, shared *shared, found *problems) {
	n := netdevs{t, found, shared}
	own := n.of(path.Join(at, "device/net"))
	if len(own) == 0 && t.linkBase(path.Join(at, "device/driver")) == "vmw_pvrdma" {
		own = n.ofVMXNET3(at)
	}
	if len(own) == 0 && (h.PCI == "" || eui64Form.MatchString(h.NodeGUID)) {
		own = n.byGUID(at, h.NodeGUID)
	}
	of := n.byPort(at, h, own)
	for i := range h.Ports {
		p := &h.Ports[i]
		for _, dir := range of[p.Number] {
			p.Netdevs = append(p.Netdevs, n.stacked(dir, nil)...)
		}
		slices.SortFunc(p.Netdevs, compareNatural)
		p.Netdevs = slices.Compact(p.Netdevs)
	}
}

// ofVMXNET3 returns the directory of the netdev of VMware's HCA: the first function of its card is a vmxnet3 of its
// own.
func (n netdevs) ofVMXNET3(at string) []string {
	function, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil || !pciForm.MatchString(path.Base(function)) {
		return nil
	}
	return n.of(path.Join(function[:len(function)-1]+"0", "net"))
}

// representor is the port name of a netdev that stands for another function of the card, as the PCI device of a card in
// switchdev mode has them. Intel's are called pf0vfr1.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+((vfr?|sf)\d+|$)`)

// of returns the directories of the netdevs in a directory net.
func (n netdevs) of(net string) []string {
	names, err := n.list(net)
	if err != nil {
		n.problems.add("%v", err)
	}
	var dirs []string
	for _, name := range names {
		if dir := path.Join(net, name); n.valid(dir, name) &&
			!representor.MatchString(n.attribute(path.Join(dir, "phys_port_name"))) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// byGUID returns the directory of the netdev of an HCA that has none below it: a soft HCA was made on one, and that of
// erdma is a card of its own. Soft-RoCE names it in its attribute parent. Soft-iWARP does not since Linux 5.13, but its
// node GUID is made of the netdev's address, as is erdma's; netdevs that are stacked on it may have that address too.
func (n netdevs) byGUID(at, guid string) []string {
	if name := n.attribute(path.Join(at, "parent")); name != "" {
		if dir := path.Join(classNet, name); n.valid(path.Join(at, "parent"), name) {
			return []string{dir}
		}
		return nil
	}
	n.shared.once.Do(n.index)
	for _, dir := range n.shared.byGUID[guid] {
		entries, err := n.list(dir)
		if err == nil && !slices.ContainsFunc(entries, func(e string) bool { return strings.HasPrefix(e, "lower_") }) {
			return []string{dir}
		}
	}
	return nil
}

// index reads the addresses of all netdevs.
func (n netdevs) index() {
	names, err := n.list(classNet)
	if err != nil {
		n.problems.add("%v", err)
	}
	n.shared.byGUID = map[string][]string{}
	for _, name := range names {
		dir := path.Join(classNet, name)
		if guid := eui64(n.attribute(path.Join(dir, "address"))); validNetdev(name) && guid != "" {
			n.shared.byGUID[guid] = append(n.shared.byGUID[guid], dir)
		}
	}
}

// stackable are the kinds of netdevs that RDMA goes through. A bridge, for one, has netdevs of all sorts below it and
// does not belong to an HCA.
var stackable = regexp.MustCompile(`(?m)^DEVTYPE=(bond|vlan|macvlan)$`)

// stacked returns the netdev of a directory and those stacked on it.
func (n netdevs) stacked(dir string, seen []string) []string {
	name := strings.TrimPrefix(path.Base(dir), "upper_")
	if slices.Contains(seen, name) || len(seen) == maxStacked {
		return seen
	}
	seen = append(seen, name)
	entries, err := n.list(dir)
	if err != nil {
		n.problems.add("%v", err)
	}
	for _, entry := range entries {
		upper, ok := strings.CutPrefix(entry, "upper_")
		if at := path.Join(dir, entry); ok && n.valid(at, upper) {
			// guard: what may be stacked
			if uevent, _ := n.Read(path.Join(at, "uevent"), maxAttribute); stackable.Match(uevent) {
				seen = n.slaves(at, n.stacked(at, seen))
			}
		}
	}
	return seen
}

// slaves adds the other netdevs of a bond whose cards have no HCA of their own: the HCA of a bond, mlx5_bond_0, hangs
// below the first one's card, and is that of all.
func (n netdevs) slaves(bond string, seen []string) []string {
	entries, _ := n.list(bond)
	for _, entry := range entries {
		name, lower := strings.CutPrefix(entry, "lower_")
		card := path.Join(bond, entry, "device")
		if _, err := n.Stat(card); !lower || err != nil || !n.valid(path.Join(bond, entry), name) {
			continue
		}
		if _, err := n.Stat(path.Join(card, "infiniband")); err != nil && !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
	}
	return seen
}

// attribute reads an attribute that may be missing, or may not answer.
func (n netdevs) attribute(name string) string {
	s, _ := readText(n.tree, name)
	return s
}

func (n netdevs) valid(at, name string) bool {
	// guard: names of netdevs
	if !validNetdev(name) {
		n.problems.add("%s: has %s, which is not a netdev name", path.Dir(at), quote(name))
		return false
	}
	return true
}

func validNetdev(s string) bool { return validName(s) && len(s) <= maxNetdev }

// eui64Form is a GUID that eui64 makes.
var eui64Form = regexp.MustCompile(`^.{7}ff:fe`)

// eui64 makes a GUID of a netdev's address as soft HCAs and erdma do.
func eui64(address string) string {
	mac, err := net.ParseMAC(address)
	if err != nil || len(mac) != 6 {
		return ""
	}
	return fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
}
