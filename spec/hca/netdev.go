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

// netdevs finds the netdevs of HCAs: the netdevs below the HCA's device in sysfs, and the netdevs stacked on them. A
// name in the GID table alone is not sufficient, because the table also contains netdevs in other network namespaces,
// and pods choose the names of these netdevs. sysfs contains only the netdevs in its own namespace, and only the links
// between them.
type netdevs struct {
	tree
	problems *problems
	shared   *shared
}

// shared contains the data that several reads of a node's HCAs share.
type shared struct {
	buses  map[string]int        // the number of HCAs in each directory, by HCA.Bus
	table  map[string]deviceNode // the device nodes of a copy by path
	once   sync.Once
	byGUID map[string][]string // the directories of netdevs, by the GUID that eui64 derives from their addresses
}

// addNetdevs sets the netdevs of an HCA's ports. The parameter at is the HCA's sysfs directory.
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

// ofVMXNET3 returns the directory of the netdev of VMware's HCA. The netdev belongs to a separate vmxnet3 device, which
// is the first function of the HCA's PCI card.
func (n netdevs) ofVMXNET3(at string) []string {
	function, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil || !pciForm.MatchString(path.Base(function)) {
		return nil
	}
	return n.inDirectory(path.Join(function[:len(function)-1]+"0", "net"))
}

// representor matches the port name of a netdev that represents another function of the card. In switchdev mode, a
// card's PCI device has such netdevs. Intel's names have the form pf0vfr1.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+((vfr?|sf)\d+|$)`)

// inDirectory returns the directories of the netdevs in a sysfs directory named "net", without representors.
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

// byGUID returns the directory of the netdev of an HCA that has no netdev below its device. The netdev of a software
// HCA is the netdev on which the HCA was created. The netdev of an erdma HCA belongs to a separate card. For Soft-RoCE,
// the attribute parent contains the netdev's name. Soft-iWARP has lacked this attribute since Linux 5.13. The node
// GUIDs of Soft-iWARP and erdma are derived from the netdev's address. byGUID skips netdevs that are stacked on other
// netdevs, because they can have the same address.
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

// stackable matches the uevent of the kinds of stacked netdevs that RDMA can use. A bridge is not one of these kinds,
// because it can have unrelated netdevs below it, and does not belong to an HCA.
var stackable = regexp.MustCompile(`(?m)^DEVTYPE=(bond|vlan|macvlan)$`)

// stacked appends the netdev with this directory, and the netdevs stacked on it, to seen.
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

// slaves appends the bond's other netdevs whose cards have no HCA to seen. A bond's HCA, such as mlx5_bond_0, is below
// the card of the bond's first netdev, but belongs to all of the bond's netdevs.
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

// attribute reads an attribute; "" if the attribute is missing or unreadable.
func (n netdevs) attribute(name string) string {
	s, _ := readText(n.tree, name)
	return s
}

func (n netdevs) checkName(at, name string) bool {
	// guard: names of netdevs
	if !validNetdev(name) {
		n.problems.add("%s contains %s, which is not a netdev name", path.Dir(at), quote(name))
		return false
	}
	return true
}

func validNetdev(s string) bool { return validName(s) && len(s) <= maxNetdev }

// eui64Form matches the GUIDs that eui64 returns.
var eui64Form = regexp.MustCompile(`^.{7}ff:fe`)

// eui64 derives a GUID from a netdev's MAC address, in the same way as software HCAs and erdma; "" if the address is
// not a MAC address.
func eui64(address string) string {
	mac, err := net.ParseMAC(address)
	if err != nil || len(mac) != 6 {
		return ""
	}
	return fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
}
