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

// portsWithoutLink finds ports that should be ACTIVE and are not: ports that are or were in use, and groups of ports on
// an RDMA node that are all down. The other ports are not cabled, or no pod uses them. They are listed in one line for
// each type of function.
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
					unused[object(h)+": Number of ports that have had no link since the node started: %d. Check the cabling."]++
				case f.Status == "":
					unused[fmt.Sprintf("PCI device %s: Number of unused %s functions: %%d.", h.Parent, h.Function)]++
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

// lostSlaves names the slaves of a port's bond that have lost their links. The port is ACTIVE through the other slaves.
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
		return "The port's bond has no link on " + strings.Join(lost, ", ") +
			". The port stays ACTIVE, but only the bond's other links contribute to the port's rate."
	case len(aggregators(v, p.Netdevs)) > 1:
		return "LACP has not aggregated the links of the port's bond (" + strings.Join(p.Netdevs, ", ") + "), so only some " +
			"of these links contribute to the port's rate. Check ad_aggregator_id in /sys/class/net/*/bonding_slave. Also " +
			"check the switch."
	}
	return ""
}

// aggregators returns the IDs of the groups that LACP has formed from a bond's slaves. Only one group carries traffic.
func aggregators(v *doctor.View, netdevs []string) (ids []string) {
	for _, name := range netdevs {
		if id := doctor.Attribute(v, classNet+name+"/bonding_slave/ad_aggregator_id"); id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// links judges ports that are not ACTIVE: first whole groups, and then the odd port of a group. The keys are objects.
type links struct {
	*doctor.View
	hcas []hca.HCA
	dark map[string]string // why a port of a group without any ACTIVE port should be ACTIVE
	odd  map[string]string // why a port of a group with ACTIVE ports should be ACTIVE
}

// manyPorts is the smallest number of ports of a board model that count as a group.
const manyPorts = 4

// compare finds the groups and the odd ports. On an RDMA node, each dark group is a fault, no matter when the node
// booted. On another node, four polling InfiniBand ports are too many to have been left without a cable.
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
					l.dark[at] = fmt.Sprintf("none of the %d ports on boards of the same model is ACTIVE", all)
				case ports[layer] >= manyPorts && len(objects) == 1:
					l.odd[at] = "the other ports on boards of the same model are ACTIVE"
				// On a card with two ports, one port is often left without a cable on purpose.
				case forRDMA && all >= manyPorts && all == len(gpus) && all == len(cards):
					l.odd[at] = "on boards of the same model, the node has one port for each GPU"
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
				l.dark[portObject(h, p)] = "no port on the node is ACTIVE"
			}
		}
	}
}

// judge judges a port that is not ACTIVE. Without evidence that the port should be ACTIVE, judge returns an empty
// finding. A port that an administrator has turned off is a fault only if the node, or a group, has no ACTIVE port.
// If a card has lost its link, the card's fault explains the lost links of its functions.
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
	check := "Check the cable and the switch port. To see the link's state, run: " + see
	if l.dark[at] != "" {
		without = l.dark[at]
		check = "First check what these ports share: the switch, its power, and its configuration. " +
			"Then check the cable. To see the link's state, run: " + see
	}
	switch {
	case p.State == "":
		return doctor.Unsure(at, "The port's state cannot be read.")
	case infiniband && physical && (p.State == "INIT" || p.State == "ARMED"):
		start := "a subnet manager in the fabric (opensm, UFM, or the subnet manager of the switch)"
		ask := fmt.Sprintf("sminfo -C %s -P %d", h.Name, p.Number)
		if h.Driver == "hfi1" { // Omni-Path, where InfiniBand's fabric tools have no effect
			start = "Omni-Path's fabric manager (opafm)"
			ask = see
		}
		return doctor.Fault(at,
			fmt.Sprintf("The port is in state %s because no subnet manager has made it ACTIVE.", p.State),
			fmt.Sprintf("Start %s. To check the result, run: %s", start, ask))
	case p.State == "INIT" && !infiniband: // an iWARP port; see iw_query_port in the kernel
		return doctor.Told(at, "The port has a link, but its netdev has no IPv4 address.")
	case off != "" && l.dark[at] != "":
		return doctor.Fault(at, fmt.Sprintf("The port is %s because %s, and %s.", p.State, off, l.dark[at]), on).Command()
	case off != "" && (why != "" || h.PCI == "") && !slices.ContainsFunc(l.hcas, hca.HCA.Active):
		return doctor.Fault(at,
			fmt.Sprintf("The port is %s because %s. No other port on the node is ACTIVE.", p.State, off), on).Command()
	case off != "" && physical:
		return doctor.Told(at, "The port is %s because %s. To turn the port on, run: %s", p.State, off, on)
	case off == "" && why != "" && slices.ContainsFunc(l.hcas, func(parent hca.HCA) bool {
		return h.Parent != "" && h.Parent == parent.PCI && len(parent.Ports) > 0 && !parent.Active() &&
			l.judge(parent, parent.Ports[0]).Status == doctor.Wrong
	}):
		return doctor.Finding{Status: doctor.Skipped, Object: at, Root: doctor.Wrong,
			Text: "The port's link depends on the physical function's link, which is down."}
	case off == "" && why != "":
		return doctor.Fault(at, fmt.Sprintf("The port is %s (%s), and %s.", p.State, p.PhysState, without),
			cmp.Or(l.LinkOfFunction(h, p), check))
	}
	return doctor.Finding{}
}

// linkUseReads are the files that show whether a netdev is, or was, in use. The addresses are those of the node's
// network namespace.
var linkUseReads = []string{"sys/class/net/*/flags", "sys/class/net/*/master", "sys/class/net/*/bonding_slave",
	"sys/class/net/*/bonding_slave/ad_aggregator_id", "sys/class/net/*/carrier_up_count",
	"proc/1/net/route", "proc/1/net/if_inet6"}

// evidence describes how a port is used, or that the port was ACTIVE since boot. It returns "" without evidence. Past
// use does not count for functions that pods use in turn.
func evidence(v *doctor.View, h hca.HCA, p hca.Port) string {
	at := fmt.Sprintf(portDir, h.Name, p.Number)
	ups := 0
	for _, name := range p.Netdevs {
		if address := addressOf(v, name); address != "" {
			return "netdev " + name + " has " + address
		}
		// A bridge is not evidence: BlueField's factory settings add a port to an Open vSwitch bridge, even without a cable.
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
			return "the port's netdev " + netdev + " is in a pod"
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
		return "the port has lost its link " + times(lost)
	case ups > 0:
		return "the port's netdev has had a link at least once since the node started"
	case before >= 0:
		return "the port has had a link at least once since the node started: " + log.Lines[before].Text
	}
	return ""
}

// times returns a count in words.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// readCount reads a number from sysfs. It returns 0 if the file does not exist.
func readCount(v *doctor.View, name string) int {
	n, _ := strconv.Atoi(doctor.Attribute(v, name))
	return n
}

// addressOf returns the kind of address that an interface has. Link-local addresses (169.254.0.0/16 and fe80::/10) do
// not count.
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

// netdevUp returns a netdev of the port that is administratively up, "" for none. Netdevs in other network namespaces
// are unknown.
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
