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
	// maxNetdev is the longest netdev name, in bytes (IFNAMSIZ without the terminating zero).
	maxNetdev = 15
	// maxStacked limits the number of netdevs stacked on one netdev.
	maxStacked = 64
)

// netdevs finds the netdevs of HCAs: those in sysfs below the HCA's device, and those stacked on them. It does not take
// names from the GID table alone, which also contains netdevs in other network namespaces, with names that pods choose.
// sysfs contains only the netdevs in its own namespace, and only links between them.
type netdevs struct {
	tree
	problems *problems
	shared   *shared
}

// shared is what several reads of a node's HCAs have in common.
type shared struct {
	buses  map[string]int        // the number of HCAs on each device, by HCA.Bus
	table  map[string]deviceNode // of a copy
	once   sync.Once
	byGUID map[string][]string // the directories of netdevs, by the GUID that eui64 makes of their addresses
}

// addNetdevs sets the netdevs of an HCA's ports. The HCA's sysfs directory is at.
func (t tree) addNetdevs(at string, h *HCA, shared *shared, found *problems) {
	n := netdevs{t, found, shared}
	own := n.inDirectory(path.Join(at, "device/net"))
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

// ofVMXNET3 returns the directory of the netdev of VMware's HCA: the first function of its PCI card is a separate
// vmxnet3.
func (n netdevs) ofVMXNET3(at string) []string {
	function, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil || !pciForm.MatchString(path.Base(function)) {
		return nil
	}
	return n.inDirectory(path.Join(function[:len(function)-1]+"0", "net"))
}

// representor matches the port name of a netdev that represents another function of the card. The PCI device of a card
// in switchdev mode has such netdevs. Intel's names have the form pf0vfr1.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+((vfr?|sf)\d+|$)`)

// inDirectory returns the directories of the netdevs in a sysfs directory "net", without representors.
func (n netdevs) inDirectory(net string) []string {
	names, err := n.list(net)
	if err != nil {
		n.problems.add("%v", err)
	}
	var dirs []string
	for _, name := range names {
		if dir := path.Join(net, name); n.checkName(dir, name) &&
			!representor.MatchString(n.attribute(path.Join(dir, "phys_port_name"))) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// byGUID returns the directory of the netdev of an HCA that has no netdev below its device: a soft HCA's netdev is the
// one that it was created on, and erdma's is a separate card. The attribute parent of Soft-RoCE contains the netdev's
// name. Soft-iWARP has lacked that attribute since Linux 5.13, but its node GUID is derived from the netdev's address,
// as is erdma's. Netdevs stacked on that netdev can have the same address.
func (n netdevs) byGUID(at, guid string) []string {
	if name := n.attribute(path.Join(at, "parent")); name != "" {
		if dir := path.Join(classNet, name); n.checkName(path.Join(at, "parent"), name) {
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

// index reads the addresses of all netdevs into shared.byGUID.
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

// stackable matches the kinds of stacked netdevs that RDMA can use. A bridge, for example, can have unrelated netdevs
// below it, and does not belong to an HCA.
var stackable = regexp.MustCompile(`(?m)^DEVTYPE=(bond|vlan|macvlan)$`)

// stacked appends to seen the netdev with this directory, and those stacked on it.
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
		if at := path.Join(dir, entry); ok && n.checkName(at, upper) {
			// guard: what may be stacked
			if uevent, _ := n.Read(path.Join(at, "uevent"), maxAttribute); stackable.Match(uevent) {
				seen = n.slaves(at, n.stacked(at, seen))
			}
		}
	}
	return seen
}

// slaves appends the bond's other netdevs whose cards have no HCA: a bond's HCA, such as mlx5_bond_0, is below the card
// of the first netdev, but belongs to all of them.
func (n netdevs) slaves(bond string, seen []string) []string {
	entries, _ := n.list(bond)
	for _, entry := range entries {
		name, lower := strings.CutPrefix(entry, "lower_")
		card := path.Join(bond, entry, "device")
		if _, err := n.Stat(card); !lower || err != nil || !n.checkName(path.Join(bond, entry), name) {
			continue
		}
		if _, err := n.Stat(path.Join(card, "infiniband")); err != nil && !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
	}
	return seen
}

// attribute reads an attribute that may be missing or unreadable; the result is then "".
func (n netdevs) attribute(name string) string {
	s, _ := readText(n.tree, name)
	return s
}

func (n netdevs) checkName(at, name string) bool {
	// guard: names of netdevs
	if !validNetdev(name) {
		n.problems.add("%s: contains %s, which is not a netdev name", path.Dir(at), quote(name))
		return false
	}
	return true
}

func validNetdev(s string) bool { return validName(s) && len(s) <= maxNetdev }

// eui64Form matches the GUIDs that eui64 returns.
var eui64Form = regexp.MustCompile(`^.{7}ff:fe`)

// eui64 derives a GUID from a netdev's address, as soft HCAs and erdma do.
func eui64(address string) string {
	mac, err := net.ParseMAC(address)
	if err != nil || len(mac) != 6 {
		return ""
	}
	return fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
}
