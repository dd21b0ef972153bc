// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// portsWithoutLink finds ports that should carry traffic and do not: there is evidence that they are in use, or were,
// or what belongs together on a node that is for RDMA is dark together. Others are listed, in one line for each
// function: nobody cabled them, or no pod uses them.
func portsWithoutLink(v *doctor.View) []doctor.Finding {
	return ofHCAs(v, func(hcas []hca.HCA) (found []doctor.Finding) {
		l := links{v, hcas, map[string]string{}, map[string]string{}}
		l.compare(byBoard(v, hcas))
		unused := map[string]int{}
		for _, h := range hcas {
			for _, p := range h.Ports {
				f := doctor.Finding{Status: doctor.OK}
				if p.Active() {
					f.Object = portObject(h, p)
					f.Text = lostSlaves(v, p)
				} else {
					f = l.judge(h, p)
				}
				switch {
				case f.Text != "":
					found = append(found, f)
				case f.Status == "" && h.Function == hca.FunctionPhysical:
					unused[object(h)+": Ports without a link since the node started: %d. Check whether they are cabled."]++
				case f.Status == "":
					unused[fmt.Sprintf("PCI device %s: Unused %s functions: %%d.", h.Parent, h.Function)]++
				}
			}
		}
		for _, line := range slices.Sorted(maps.Keys(unused)) {
			of, text, _ := strings.Cut(line, ": ")
			found = append(found, doctor.Told(of, text, unused[line]))
		}
		return found
	})
}

// lostSlaves says which slaves of its bond have lost their links, of a port that is ACTIVE with the others.
func lostSlaves(v *doctor.View, p hca.Port) string {
	var lost []string
	for _, name := range p.Netdevs {
		slave, _ := v.Exists(classNet + name + "/bonding_slave")
		if slave && doctor.Attribute(v, classNet+name+"/carrier") == "0" {
			lost = append(lost, name)
		}
	}
	switch {
	case len(lost) > 0:
		return "Its bond has lost the link of " + strings.Join(lost, ", ") +
			". The port stays ACTIVE, but only the bond's other links contribute to its rate."
	case len(aggregators(v, p.Netdevs)) > 1:
		return "LACP has not aggregated the links of its bond (" + strings.Join(p.Netdevs, ", ") + "), so only some of " +
			"the links contribute to the port's rate. Check ad_aggregator_id in /sys/class/net/*/bonding_slave, and the switch."
	}
	return ""
}

// aggregators are the groups of slaves of a bond that LACP has made. Only one of them carries traffic.
func aggregators(v *doctor.View, netdevs []string) (ids []string) {
	for _, name := range netdevs {
		if id := doctor.Attribute(v, classNet+name+"/bonding_slave/ad_aggregator_id"); id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// links judges ports that are not ACTIVE, each by its object: groups first, and then the odd one of a group.
type links struct {
	*doctor.View
	hcas []hca.HCA
	dark map[string]string // why a port should be ACTIVE that is in a group without any ACTIVE port
	odd  map[string]string // why one should be that is in a group with ACTIVE ports
}

// manyPorts are so many ports of a board that they belong together.
const manyPorts = 4

// compare finds the groups and the odd ones. A node that is for RDMA has no dark group, whenever it was booted. On one
// that need not be, four ports of InfiniBand that poll are more than somebody has left without a cable.
func (l links) compare(boards [][]hca.HCA) {
	gpus, _ := l.GPUs() // what cannot be listed is not there
	forRDMA := l.ForRDMA()
	for _, board := range boards {
		active := 0
		polling := 0
		ports := map[string]int{}
		down := map[string][]string{} // by link layer
		cards := map[string]bool{}
		for _, h := range board {
			card, _, _ := strings.Cut(h.PCI, ".")
			cards[card] = true
			for _, p := range h.Ports {
				if p.LinkLayer == "Ethernet" && len(h.Ports) > manyPorts && len(p.Netdevs) == 0 { // of a representor
					continue
				}
				ports[p.LinkLayer]++
				if p.Active() {
					active++
					continue
				}
				down[p.LinkLayer] = append(down[p.LinkLayer], portObject(h, p))
				if p.PhysState == "Polling" &&
					p.LinkLayer == "InfiniBand" {
					polling++
				}
			}
		}
		all := ports["InfiniBand"] + ports["Ethernet"]
		for layer, objects := range down {
			for _, at := range objects {
				switch {
				case active == 0 && all >= manyPorts && (forRDMA || polling >= manyPorts):
					l.dark[at] = fmt.Sprintf("none of the %d ports of its board model is ACTIVE", all)
				case ports[layer] >= manyPorts && len(objects) == 1:
					l.odd[at] = "the other ports of its board model are ACTIVE"
				// Of a card with two ports, one is often meant to have no cable.
				case forRDMA && all >= manyPorts && all == len(gpus) && all == len(cards):
					l.odd[at] = "its board model has a port for each GPU"
				}
			}
		}
	}
	if !forRDMA || len(l.dark) > 0 || slices.ContainsFunc(l.hcas, hca.HCA.Active) {
		return
	}
	for _, h := range l.hcas {
		for _, p := range h.Ports {
			if h.Parent == "" {
				l.dark[portObject(h, p)] = "no port of the node is ACTIVE"
			}
		}
	}
}

// judge judges a port that is not ACTIVE. Without evidence that it should be, it returns nothing. One that an
// administrator has turned off is not a fault, unless that leaves the node, or a group, none. Where a card has lost its
// link, that is the cause of its functions' too.
func (l links) judge(h hca.HCA, p hca.Port) doctor.Finding {
	at := portObject(h, p)
	see := h.Tools(p).Link
	physical := h.Function == hca.FunctionPhysical
	infiniband := p.LinkLayer == "InfiniBand"
	why := cmp.Or(evidence(l.View, h, p), l.dark[at], l.odd[at])
	off := ""
	on := ""
	up, known := netdevUp(l.View, p)
	switch {
	case infiniband && p.PhysState == "Disabled":
		off = "it is disabled"
		on = fmt.Sprintf("ibportstate -C %s -D 0 %d enable", h.Name, p.Number)
	case !infiniband && known && up == "":
		off = "netdev " + p.Netdevs[0] + " is administratively down"
		on = "ip link set " + p.Netdevs[0] + " up"
	case !infiniband && known && !strings.HasPrefix(see, "ip "):
		see = "ip link show " + up + "; " + see
	}
	without := why
	check := "Check the cable and the switch's port. For the link, see: " + see
	if l.dark[at] != "" {
		without = l.dark[at]
		check = "First check what these ports have in common: the switch, its power, its " +
			"configuration. Then check the cable. For the link, see: " + see
	}
	switch {
	case p.State == "":
		return doctor.Unsure(at, "Its state cannot be read.")
	case infiniband && physical && (p.State == "INIT" || p.State == "ARMED"):
		start := "a subnet manager in the fabric (opensm, UFM, or the switch's own)"
		ask := fmt.Sprintf("sminfo -C %s -P %d", h.Name, p.Number)
		if h.Driver == "hfi1" { // Omni-Path, where the programs of InfiniBand's fabrics do nothing
			start = "Omni-Path's fabric manager (opafm)"
			ask = see
		}
		return doctor.Fault(at, fmt.Sprintf("It is in state %s, because no subnet manager has made it ACTIVE.", p.State),
			fmt.Sprintf("Start %s. Then check: %s", start, ask))
	case p.State == "INIT" && !infiniband: // iWARP's, see iw_query_port in the kernel
		return doctor.Told(at, "It has a link, but its netdev has no IPv4 address.")
	case off != "" && l.dark[at] != "":
		return doctor.Fault(at, fmt.Sprintf("It is %s because %s, and %s.", p.State, off, l.dark[at]), on).Command()
	case off != "" && (why != "" || h.PCI == "") && !slices.ContainsFunc(l.hcas, hca.HCA.Active):
		return doctor.Fault(at, fmt.Sprintf("It is %s because %s, and no other port of the node is ACTIVE.", p.State, off),
			on).Command()
	case off != "" && physical:
		return doctor.Told(at, "It is %s because %s: %s", p.State, off, on)
	case off == "" && why != "" && slices.ContainsFunc(l.hcas, func(parent hca.HCA) bool {
		return h.Parent != "" && h.Parent == parent.PCI && len(parent.Ports) > 0 && !parent.Active() &&
			l.judge(parent, parent.Ports[0]).Status == doctor.Wrong
	}):
		return doctor.Finding{Status: doctor.Skipped, Object: at, Root: doctor.Wrong,
			Text: "Its link depends on the physical function's link, which is down."}
	case off == "" && why != "":
		return doctor.Fault(at, fmt.Sprintf("It is %s (%s), and %s.", p.State, p.PhysState, without),
			cmp.Or(l.LinkOfFunction(h, p), check))
	}
	return doctor.Finding{}
}

// linkUseReads are what tells that a netdev is, or was, in use. The addresses are those of the node's network
// namespace.
var linkUseReads = []string{"sys/class/net/*/flags", "sys/class/net/*/master", "sys/class/net/*/bonding_slave",
	"sys/class/net/*/bonding_slave/ad_aggregator_id", "sys/class/net/*/carrier_up_count",
	"proc/1/net/route", "proc/1/net/if_inet6"}

// evidence says how a port is used, or that it was ACTIVE since boot: "" if nothing tells that. What was does not count
// for functions that pods use in turn.
func evidence(v *doctor.View, h hca.HCA, p hca.Port) string {
	at := fmt.Sprintf(portDir, h.Name, p.Number)
	ups := 0
	for _, name := range p.Netdevs {
		if address := addressOf(v, name); address != "" {
			return "netdev " + name + " has " + address
		}
		// A bridge tells nothing: BlueField has a port in one of Open vSwitch from the factory, with or without a cable.
		master, err := v.Readlink(classNet + name + "/master")
		if bonded, _ := v.Exists(classNet + name + "/bonding_slave"); bonded && err == nil {
			return "netdev " + name + " is part of " + path.Base(master)
		}
		ups += readCount(v, classNet+name+"/carrier_up_count")
	}
	names, _ := v.Glob(at + "gid_attrs/ndevs/*")
	for _, name := range names {
		netdev := doctor.Attribute(v, name)
		own := func(other hca.Port) bool { return slices.Contains(other.Netdevs, netdev) }
		if len(p.Netdevs) == 0 && netdev != "" && !slices.ContainsFunc(h.Ports, own) {
			return "its netdev " + netdev + " is in a pod"
		}
	}
	lost := readCount(v, at+"counters/link_downed")
	log, _ := v.KernelLog()
	before := slices.IndexFunc(log.Lines, func(line node.KernelLine) bool {
		return linkUp.MatchString(line.Text) && len(h.Ports) == 1 && isAbout(line.Text, h)
	})
	switch {
	case h.Function != hca.FunctionPhysical:
	case lost > 0:
		return "it has lost its link " + times(lost)
	case ups > 0:
		return "its netdev has had a link at least once since the node started"
	case before >= 0:
		return "it has had a link at least once since the node started: " + log.Lines[before].Text
	}
	return ""
}

// times says how often.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// readCount reads a number of sysfs, 0 where there is none.
func readCount(v *doctor.View, name string) int {
	n, _ := strconv.Atoi(doctor.Attribute(v, name))
	return n
}

// addressOf says which address an interface has. Those that it gives itself are none: 169.254.0.0/16 and fe80::/10.
func addressOf(v *doctor.View, netdev string) string {
	for _, table := range [][2]string{{"route", "a route"}, {"if_inet6", "an IPv6 address"}} {
		for line := range strings.Lines(doctor.Attribute(v, "proc/1/net/"+table[0])) {
			fields := strings.Fields(line)
			if slices.Contains(fields, netdev) && !slices.ContainsFunc(fields, func(field string) bool {
				return field == "0000FEA9" || strings.HasPrefix(field, "fe80")
			}) {
				return table[1]
			}
		}
	}
	return ""
}

// netdevUp returns a netdev of the port that an administrator has turned on, "" for none. Nothing is known of netdevs
// that are elsewhere.
func netdevUp(v *doctor.View, p hca.Port) (up string, known bool) {
	for _, name := range p.Netdevs {
		flags, err := strconv.ParseUint(strings.TrimPrefix(doctor.Attribute(v, classNet+name+"/flags"), "0x"), 16, 32)
		if err != nil {
			continue
		}
		known = true
		if flags&1 != 0 && up == "" { // IFF_UP
			up = name
		}
	}
	return up, known
}
