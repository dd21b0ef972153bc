// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"path"
	"slices"
	"strconv"
)

// linkLayerInfiniBand is what a port says whose GIDs name no netdev.
const linkLayerInfiniBand = "InfiniBand"

// maxNetdev is the length of a netdev's name (IFNAMSIZ without its zero).
const maxNetdev = 15

// ports reads the ports of the HCA at the path at, whose folder is dir.
func (t *tree) ports(at string, dir folder, found *problems) []Port {
	ports := []Port{}
	all, err := dir.folder("ports")
	if err != nil {
		found.add("ports: %v", err)
		return ports
	}
	defer all.close()
	names, err := all.list()
	if err != nil {
		found.add("ports: %v", err)
		return ports
	}
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 || n > maxEntries || strconv.Itoa(n) != name {
			found.add("ports: has an entry %s, which is no port number", quote(name))
			continue
		}
		ports = append(ports, port(all, n, found))
	}
	if len(ports) == 0 && len(names) == 0 {
		found.add("ports: there are none")
	}
	t.addIPoIB(at, ports, found)
	return ports
}

// port reads one port out of the folder of all. It always gives one, as hca does.
func port(all folder, n int, found *problems) Port {
	p := Port{Number: n, Netdevs: []string{}}
	in := "ports/" + strconv.Itoa(n)
	dir, err := all.folder(strconv.Itoa(n))
	if err != nil {
		found.add("%s: %v", in, err)
		return p
	}
	defer dir.close()
	a := attributes{dir: dir, in: in + "/", problems: found}
	p.State = a.coded("state")
	p.PhysState = a.coded("phys_state")
	p.LinkLayer = a.text("link_layer")
	p.Rate = a.optional("rate")
	p.Netdevs = gidNetdevs(a)
	return p
}

// maxSilentGIDs is how many GIDs in a row without a netdev end the search for
// more. The kernel puts a new GID into the first free place, and the tables
// are large (soft-RoCE has 1024): reading all of them would take most of the
// time of a Scan.
const maxSilentGIDs = 64

// gidNetdevs gives the netdevs that the port's GIDs belong to. On Ethernet
// each GID has one; for a bond it is the bond. On InfiniBand none has.
func gidNetdevs(a attributes) []string {
	netdevs := []string{}
	gidAttrs, err := a.dir.folder("gid_attrs")
	if err != nil {
		return netdevs // kernels before 4.5
	}
	defer gidAttrs.close()
	ndevs, err := gidAttrs.folder("ndevs")
	if err != nil {
		return netdevs
	}
	defer ndevs.close()
	names, err := ndevs.list()
	if err != nil {
		a.problems.add("%sgid_attrs/ndevs: %v", a.in, err)
		return netdevs
	}
	gids := attributes{dir: ndevs, in: a.in + "gid_attrs/ndevs/", problems: a.problems}
	silent := 0
	for _, name := range names {
		if !validName(name) {
			a.problems.add("%sgid_attrs/ndevs: has an entry %s, which is no GID", a.in, quote(name))
			continue
		}
		netdev := gids.optional(name)
		if silent++; netdev != "" {
			silent = 0
		}
		if silent == maxSilentGIDs {
			break
		}
		switch {
		case netdev == "" || slices.Contains(netdevs, netdev):
		// guard: names of netdevs
		case !validNetdev(netdev):
			a.problems.add("%sgid_attrs/ndevs/%s: is %s, which is no name of a netdev", a.in, name, quote(netdev))
		default:
			netdevs = append(netdevs, netdev)
		}
	}
	slices.SortFunc(netdevs, compareNatural)
	return netdevs
}

// addIPoIB gives InfiniBand ports whose GIDs name no netdev those of the PCI
// function: the IPoIB interfaces. Where one function carries several ports,
// as with ConnectX-3, dev_port says which: it counts from 0.
func (t *tree) addIPoIB(at string, ports []Port, found *problems) {
	var silent []*Port
	for i := range ports {
		if p := &ports[i]; p.LinkLayer == linkLayerInfiniBand && len(p.Netdevs) == 0 {
			silent = append(silent, p)
		}
	}
	if len(silent) == 0 {
		return
	}
	net := path.Join(at, "device/net")
	names, err := t.list(net)
	if err != nil {
		found.add("%v", err)
		return
	}
	for _, name := range names {
		if !validNetdev(name) {
			found.add("device/net: has an entry %s, which is no name of a netdev", quote(name))
			continue
		}
		number := 0
		if len(ports) > 1 {
			number = t.devPort(path.Join(net, name)) + 1
		}
		for _, p := range silent {
			if len(ports) == 1 || p.Number == number {
				p.Netdevs = append(p.Netdevs, name)
			}
		}
	}
}

// devPort reads which port of its PCI function a netdev is, 0 if it cannot.
func (t *tree) devPort(netdev string) int {
	dir, err := t.folder(netdev)
	if err != nil {
		return 0
	}
	defer dir.close()
	s, err := readText(dir, "dev_port")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

func validNetdev(s string) bool { return validName(s) && len(s) <= maxNetdev }
