// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"os"
	"path"
	"slices"
	"strconv"
)

// linkLayerInfiniBand is what a port says whose GIDs name no netdev.
const linkLayerInfiniBand = "InfiniBand"

// maxNetdev is the length of a netdev's name (IFNAMSIZ without its zero).
const maxNetdev = 15

// ports reads the ports of the HCA at the path at, whose folder is dir.
func (t *tree) ports(at string, dir *os.Root, found *problems) []Port {
	ports := []Port{}
	names, err := listFolder(dir, "ports")
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
		ports = append(ports, port(dir, n, found))
	}
	if len(ports) == 0 && len(names) == 0 {
		found.add("ports: there are none")
	}
	t.addIPoIB(at, ports, found)
	return ports
}

// port reads one port. It always gives one, as hca does.
func port(dir *os.Root, n int, found *problems) Port {
	p := Port{Number: n, Netdevs: []string{}}
	in := "ports/" + strconv.Itoa(n)
	folder, err := dir.OpenRoot(in + "/")
	if err != nil {
		found.add("%s: %v", in, cause(err))
		return p
	}
	defer folder.Close()
	a := attributes{dir: folder, in: in + "/", problems: found}
	p.State = a.coded("state")
	p.PhysState = a.coded("phys_state")
	p.LinkLayer = a.text("link_layer")
	p.Rate = a.optional("rate")
	p.Netdevs = gidNetdevs(a)
	return p
}

// gidNetdevs gives the netdevs that the port's GIDs belong to. On Ethernet
// each GID has one; for a bond it is the bond. On InfiniBand none has.
func gidNetdevs(a attributes) []string {
	netdevs := []string{}
	folder, err := a.dir.OpenRoot("gid_attrs/ndevs/")
	if err != nil {
		return netdevs // older kernels, and drivers without GIDs
	}
	defer folder.Close()
	names, err := listFolder(folder, ".")
	if err != nil {
		a.problems.add("%sgid_attrs/ndevs: %v", a.in, err)
		return netdevs
	}
	gids := attributes{dir: folder, in: a.in + "gid_attrs/ndevs/", problems: a.problems}
	for _, name := range names {
		if !validName(name) {
			a.problems.add("%sgid_attrs/ndevs: has an entry %s, which is no GID", a.in, quote(name))
			continue
		}
		netdev := gids.optional(name)
		switch {
		case netdev == "" || slices.Contains(netdevs, netdev):
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
	wants := func(p Port) bool { return p.LinkLayer == linkLayerInfiniBand && len(p.Netdevs) == 0 }
	if !slices.ContainsFunc(ports, wants) {
		return
	}
	net := path.Join(at, "device/net")
	names, err := t.list(net)
	if err != nil {
		found.add("device/net: %v", cause(err))
		return
	}
	for _, name := range names {
		if !validNetdev(name) {
			found.add("device/net: has an entry %s, which is no name of a netdev", quote(name))
			continue
		}
		number := 1
		if len(ports) > 1 {
			number = t.devPort(path.Join(net, name)) + 1
		}
		for i := range ports {
			p := &ports[i]
			if only := len(ports) == 1; wants(*p) && (only || p.Number == number) {
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
	defer dir.Close()
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
