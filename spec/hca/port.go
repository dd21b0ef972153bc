// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

// linkLayerInfiniBand is the link layer of ports that have a LID and a subnet.
const linkLayerInfiniBand = "InfiniBand"

// mostPorts is the highest valid port number.
const mostPorts = 4096

// ports reads the ports of the HCA with the directory dir. It does not read the ports' netdevs.
func ports(dir tree, parts Parts, found *problems) []Port {
	ports := []Port{}
	all, err := dir.dir("ports")
	if err != nil {
		found.add("ports: %v", err)
		return ports
	}
	defer all.close()
	names, err := all.list(".")
	if err != nil {
		found.add("ports: %v", err)
		return ports
	}
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 || n > mostPorts || strconv.Itoa(n) != name {
			found.add("ports: the entry %s is not a port number", quote(name))
			continue
		}
		ports = append(ports, port(all, n, parts, found))
	}
	if len(names) == 0 {
		found.add("ports: no ports found")
	}
	return ports
}

// port reads port n from the directory of all ports. It always returns a Port, in which values that cannot be read are
// "".
func port(all tree, n int, parts Parts, found *problems) Port {
	p := Port{Number: n, Netdevs: []string{}}
	in := "ports/" + strconv.Itoa(n)
	dir, err := all.dir(strconv.Itoa(n))
	if err != nil {
		found.add("%s: %v", in, err)
		return p
	}
	defer dir.close()
	a := attributes{dir: dir, in: in + "/", problems: found}
	p.State = a.coded("state")
	if parts.Rest { // to read phys_state, the kernel also queries the firmware
		p.PhysState = a.coded("phys_state")
	}
	p.LinkLayer = a.text("link_layer")
	p.RawPackets = p.LinkLayer == "Ethernet" && noPlace(dir)
	if parts.Rest {
		p.Rate = a.optional("rate")
	}
	if !parts.Details {
		return p
	}
	p.GIDs = gids(a)
	if p.LinkLayer == linkLayerInfiniBand {
		p.LID = a.lid("lid")
		p.SMLID = a.lid("sm_lid")
		if len(p.GIDs) > 0 && p.GIDs[0].Index == 0 {
			p.SubnetPrefix = p.GIDs[0].GID[:len(zeroGUID)]
		}
	}
	return p
}

// noPlace reports whether the GID table of the port with the directory dir has no entries at all. If the table has
// empty entries, the kernel fills them when the port's netdev is up.
func noPlace(dir tree) bool {
	if _, err := dir.Stat("gids/0"); err == nil {
		return false
	}
	names, err := dir.List("gids", maxEntries)
	return err == nil && len(names) == 0
}

// lid reads an attribute such as "0x1a"; 0 if the attribute cannot be read.
func (a attributes) lid(name string) uint32 {
	s := a.optional(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 32)
	if err != nil {
		a.problems.add("%s%s: %s does not have the form \"0x1a\"", a.in, name, quote(s))
	}
	return uint32(n)
}

var gidForm = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){7}$`)

// gids returns the nonempty entries of a port's GID table.
func gids(a attributes) []GID {
	names, err := a.dir.list("gids")
	if err != nil {
		a.problems.add("%s%v", a.in, err)
	}
	var all []GID
	for _, name := range names {
		index, err := strconv.Atoi(name)
		if err != nil || index < 0 || strconv.Itoa(index) != name {
			a.problems.add("%sgids: the entry %s is not an index", a.in, quote(name))
			continue
		}
		gid := a.optional(path.Join("gids", name))
		switch {
		case strings.Trim(gid, "0:") == "":
		case !gidForm.MatchString(gid):
			a.problems.add("%sgids/%d: %s is not a GID", a.in, index, quote(gid))
		default:
			all = append(all, GID{Index: index, GID: gid, Type: a.optional(path.Join("gid_attrs/types", name))})
		}
	}
	return all
}
