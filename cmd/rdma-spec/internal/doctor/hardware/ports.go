// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// portChecks are about the ports of HCAs.
func portChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "port-active", Family: "hca", Title: "Each port that is turned on is ACTIVE.",
		Messages: []string{"Port number 1 state is Down", "PORT_DOWN"},
		Why:      "A port carries traffic only when it is ACTIVE.",
		Reads:    []string{"sys/class/net/*/flags", "sys/bus/pci/devices/*/virtfn*"},
		Needs:    []string{"hca-answers", "guid-valid"}, Look: eachPort(portState),
	}, {
		ID: "port-rate", Family: "hca", Title: "Each port has the rate of the others of its board.",
		NoMessages: "a slow link shows in bandwidth tests alone",
		Why:        "A job is as slow as its slowest port.",
		Reads:      slices.Concat(boardReads, []string{"sys/class/net/*/bonding_slave"}),
		Needs:      []string{"hca-answers", "port-active"}, Look: eachBoard(slowPorts),
	}, {
		ID: "gids-free", Family: "hca", Title: "Each RoCE port has room for more GIDs.",
		Messages: []string{"Failed to query GID", "__ib_cache_gid_add: unable to add gid"},
		Why:      "Each address of each netdev on a port takes a GID, and pods that come when none is left get none.",
		Reads:    []string{"sys/class/infiniband/*/ports/*/gids/*"},
		Needs:    []string{"hca-answers"}, Look: eachPort(fullGIDTable),
	}, {
		ID: "mtu-same", Family: "hca", Title: "RoCE ports of the same board have the same MTU.",
		Messages: []string{"IBV_WC_LOC_LEN_ERR"},
		Why: "Two ends with different MTUs hang, or fail with a length error. Compare nodes by node_exporter's " +
			"node_network_mtu_bytes.",
		Reads: slices.Concat(boardReads, []string{"sys/class/net/*/mtu"}),
		Needs: []string{"hca-answers"}, Look: eachBoard(differentMTUs),
	}}
}

// eachPort looks at each port of the HCAs that answer.
func eachPort(look func(*doctor.View, hca.HCA, hca.Port) []doctor.Finding) func(*doctor.View) []doctor.Finding {
	return eachHCA(func(v *doctor.View, h hca.HCA) []doctor.Finding {
		var found []doctor.Finding
		for _, p := range h.Ports {
			found = append(found, look(v, h, p)...)
		}
		return found
	})
}

// portState finds ports that should carry traffic and do not. One that an administrator has turned off is not a fault,
// unless that leaves the node none.
func portState(v *doctor.View, h hca.HCA, p hca.Port) []doctor.Finding {
	at := portObject(h, p)
	off := func(why, on string) []doctor.Finding {
		if node, err := v.HCAs(); err == nil && !slices.ContainsFunc(node.HCAs,
			func(h hca.HCA) bool { return h.Active() || h.Unread != "" }) {
			return []doctor.Finding{doctor.Fault(at, fmt.Sprintf("It is %s because %s, and no other port of the node is ACTIVE.",
				p.State, why), on)}
		}
		return []doctor.Finding{{Status: doctor.OK, Object: at,
			Text: fmt.Sprintf("It is %s because %s: %s", p.State, why, on)}}
	}
	switch p.State {
	case hca.StateActive:
		return nil
	case "":
		return []doctor.Finding{doctor.Unsure(at, "Its state cannot be read.")}
	case "INIT", "ARMED":
		text := fmt.Sprintf("It is in state %s: no subnet manager has set it up.", p.State)
		return []doctor.Finding{doctor.Fault(at, text,
			"Start a subnet manager in the fabric (opensm, UFM, or the switch's own), and see: sminfo -C "+h.Name+" -P "+
				strconv.Itoa(p.Number))}
	}
	if h.Function != hca.FunctionPhysical {
		return []doctor.Finding{doctor.Unsure(at,
			fmt.Sprintf("It is %s. That is normal for a %s function that no pod uses; if a pod uses it, see its link: ip link "+
				"show", p.State,
				h.Function))}
	}
	if p.LinkLayer == "InfiniBand" {
		if p.PhysState == "Disabled" {
			return off("it is disabled", "mlxlink -d "+cmp.Or(h.PCI, h.Name)+" -p "+strconv.Itoa(p.Number)+" -a UP")
		}
		return []doctor.Finding{doctor.Fault(at, fmt.Sprintf("It is %s (%s).", p.State, p.PhysState),
			"Check the cable and the switch's port, and see: mlxlink -d "+cmp.Or(h.PCI, h.Name)+" -p "+strconv.Itoa(p.Number))}
	}
	up, known := netdevUp(v, p)
	switch {
	case !known:
		return []doctor.Finding{doctor.Unsure(at, fmt.Sprintf("It is %s, and its netdev is not in this network namespace.",
			p.State))}
	case up == "":
		return off("netdev "+p.Netdevs[0]+" is turned off", "ip link set "+p.Netdevs[0]+" up")
	}
	return []doctor.Finding{doctor.Fault(at, fmt.Sprintf("It is %s although netdev %s is up: there is no link.", p.State,
		up),
		"Check the cable and the switch's port, and see: ip link show "+up)}
}

// netdevUp returns a netdev of the port that an administrator has turned on, "" for none. Nothing is known of netdevs
// that are elsewhere.
func netdevUp(v *doctor.View, p hca.Port) (up string, known bool) {
	for _, name := range p.Netdevs {
		flags, err := strconv.ParseUint(strings.TrimPrefix(doctor.Attribute(v, "sys/class/net/"+name+"/flags"), "0x"), 16, 32)
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

// speed returns the Gb/s of a rate such as "100 Gb/sec (4X EDR)", and its lanes.
func speed(rate string) (gigabits float64, lanes int) {
	_, _ = fmt.Sscanf(rate, "%g Gb/sec (%dX", &gigabits, &lanes)
	return gigabits, lanes
}

// slowPorts finds ports that are slower than most ports of their board and link layer, and links of InfiniBand on one
// lane.
func slowPorts(v *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	type port struct {
		at, see, rate string
		speed         float64
	}
	layers := map[string][]port{}
	for _, h := range group {
		for _, p := range h.Ports {
			gigabits, lanes := speed(p.Rate)
			this := port{portObject(h, p), "mlxlink -d " + h.PCI + " -p " + strconv.Itoa(p.Number), p.Rate, gigabits}
			switch {
			case p.LinkLayer == "InfiniBand" && lanes == 1:
				found = append(found, doctor.Fault(this.at, fmt.Sprintf("Its link has one lane (%s).", p.Rate),
					"Reseat or replace the cable, and see: "+this.see))
			case p.Active() && gigabits > 0 && !bonded(v, p):
				layers[p.LinkLayer] = append(layers[p.LinkLayer], this)
			}
		}
	}
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		ports := layers[layer]
		best := slices.MaxFunc(ports, func(a, b port) int { return cmp.Compare(a.speed, b.speed) })
		slower := slices.DeleteFunc(slices.Clone(ports), func(p port) bool { return p.speed >= best.speed })
		for _, p := range slower {
			f := doctor.Unsure(p.at, fmt.Sprintf("Its rate is %s, and %s of the same board has %s.", p.rate, best.at, best.rate))
			if 2*len(slower) < len(ports) {
				f = doctor.Fault(p.at, f.Text, "Reseat or replace the cable, check the switch's port, and see: "+p.see)
			}
			found = append(found, f)
		}
	}
	return found
}

// bonded reports whether a port is one of several that make an HCA together: its rate is that of all.
func bonded(v *doctor.View, p hca.Port) bool {
	return slices.ContainsFunc(p.Netdevs, func(netdev string) bool {
		slave, _ := v.Exists("sys/class/net/" + netdev + "/bonding_slave")
		return slave
	})
}

// fullGIDTable finds RoCE ports whose table has no empty place.
func fullGIDTable(v *doctor.View, h hca.HCA, p hca.Port) []doctor.Finding {
	if p.LinkLayer != "Ethernet" || isEFA(h) {
		return nil
	}
	names, err := v.Glob(fmt.Sprintf("sys/class/infiniband/%s/ports/%d/gids/*", h.Name, p.Number))
	if err != nil || len(names) < 16 { // soft HCAs and iWARP have small tables
		return nil
	}
	for _, name := range names {
		if strings.Trim(doctor.Attribute(v, name), "0:") == "" {
			return nil
		}
	}
	return []doctor.Finding{doctor.Fault(portObject(h, p),
		fmt.Sprintf("All %d places of its GID table are taken.", len(names)),
		"Let fewer pods share the HCA: lower rdmaHcaMax in the configuration of k8s-rdma-shared-dev-plugin.")}
}

// differentMTUs finds RoCE ports of one board with several MTUs. Which one is right depends on the network.
func differentMTUs(v *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	first, firstMTU := "", ""
	for _, h := range group {
		for _, p := range h.Ports {
			if p.LinkLayer != "Ethernet" || len(p.Netdevs) == 0 {
				continue
			}
			mtu := doctor.Attribute(v, "sys/class/net/"+p.Netdevs[0]+"/mtu")
			switch {
			case mtu == "":
			case first == "":
				first, firstMTU = p.Netdevs[0], mtu
			case mtu != firstMTU:
				found = append(found, doctor.Unsure(portObject(h, p),
					fmt.Sprintf("Netdev %s has MTU %s, and %s of the same board has %s. If both are on one network: "+
						"ip link set %s mtu %s", p.Netdevs[0], mtu, first, firstMTU, p.Netdevs[0], firstMTU)))
			}
		}
	}
	return found
}
