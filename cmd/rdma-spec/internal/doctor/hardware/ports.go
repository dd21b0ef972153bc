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

const (
	classNet = "sys/class/net/"
	portDir  = "sys/class/infiniband/%s/ports/%d/"
)

// portChecks returns the checks of the ports of HCAs.
func portChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "port-active", Family: "hca", Title: "Each port that should be up is ACTIVE.",
		Impact: "A port carries traffic only if it is ACTIVE.",
		Reads: slices.Concat(boardReads, linkUseReads, doctor.GPUReads, doctor.FunctionReads, []string{
			"sys/class/infiniband/*/ports/*/counters/link_downed"}),
		Needs: []string{"hca-answers", "guid-valid", "hca-errors"}, Look: portsWithoutLink,
	}, {
		ID: "port-rate", Family: "hca", Title: "Ports on boards of the same model have the same rate.",
		NoMessages: "benchmarks report low bandwidth",
		Impact:     "A job is only as fast as its slowest port.",
		Reads:      slices.Concat(boardReads, []string{"sys/class/net/*/bonding_slave"}),
		Needs:      []string{"hca-answers", "port-active"}, Look: eachBoard(slowPorts),
	}, {
		ID: "pkeys", Family: "hca", Title: "Each ACTIVE InfiniBand port is a full member of a partition.",
		NoMessages: "connections time out although the ports at both ends are ACTIVE",
		Impact: "Without a partition key, a port cannot reach any other port. Two ports that are limited members cannot " +
			"reach each other.",
		Reads: []string{"sys/class/infiniband/*/ports/*/pkeys/*"},
		Needs: []string{"hca-answers", "port-active"}, Look: eachPort(noFullKey),
	}, {
		ID: "gids-free", Family: "hca", Title: "Each RoCE port has free GID entries.",
		Impact: "Each address of a port's netdevs takes up GID entries. If all entries are in use, new pods cannot get a " +
			"GID.",
		Reads: []string{"sys/class/infiniband/*/ports/*/gids/*"},
		Needs: []string{"hca-answers"}, Look: eachPort(fullGIDTable),
	}, {
		ID: "mtu-same", Family: "hca", Title: "RoCE ports on boards of the same model have the same MTU.",
		Impact: "Connections between ports with different MTUs hang, or fail with a length error. To compare " +
			"the MTUs of several nodes, use the node_network_mtu_bytes metric of node_exporter.",
		Reads: slices.Concat(boardReads, []string{"sys/class/net/*/mtu"}),
		Needs: []string{"hca-answers"}, Look: eachBoard(differentMTUs),
	}}
}

// eachPort calls look with each port of the HCAs that respond.
func eachPort(look func(*doctor.View, hca.HCA, hca.Port) []doctor.Finding) doctor.Look {
	return eachHCA(func(v *doctor.View, h hca.HCA) []doctor.Finding {
		return doctor.Each(h.Ports, func(p hca.Port) []doctor.Finding { return look(v, h, p) })
	})
}

// noFullKey finds InfiniBand ports without a partition key, and ports whose keys all have limited membership.
func noFullKey(v *doctor.View, h hca.HCA, p hca.Port) []doctor.Finding {
	names, _ := v.Glob(fmt.Sprintf(portDir, h.Name, p.Number) + "pkeys/*")
	if !p.Active() || p.LinkLayer != "InfiniBand" || len(names) == 0 {
		return nil
	}
	limited := ""
	for _, name := range names {
		text := doctor.Attribute(v, name)
		key, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 16)
		switch {
		case err != nil || key&0x8000 != 0: // an unreadable key might be a full key
			return nil
		case key != 0:
			limited = text
		}
	}
	text := "The port has no partition key."
	if limited != "" {
		text = fmt.Sprintf("The port is only a limited member of its partitions (%s).", limited)
	}
	return []doctor.Finding{doctor.Fault(portObject(h, p), text, "In the subnet manager's partition "+
		"configuration (opensm's partitions.conf, or UFM), make the port a full member. If limited membership is intended, "+
		"no change is needed. A limited member can still reach full members, such as storage servers.")}
}

// speed returns the Gb/s and the number of lanes of a rate such as "100 Gb/sec (4X EDR)".
func speed(rate string) (gigabits float64, lanes int) {
	_, _ = fmt.Sscanf(rate, "%g Gb/sec (%dX", &gigabits, &lanes)
	return gigabits, lanes
}

// uneven is a port whose value differs from the most common value of its board model and link layer.
type uneven struct {
	hca.Port
	at, value   string
	other, than string // a port with the usual value, and the usual value
	most        bool   // most ports have the usual value
	alike       int    // how many ports have the value: two or more can be a design
	hca         hca.HCA
}

// unevenPorts compares the ACTIVE ports of a board model. Ports without a value do not count.
func unevenPorts(group []hca.HCA, value func(hca.Port) string) (found []uneven) {
	layers := map[string][]uneven{}
	count := map[string]int{}
	for _, h := range group {
		for _, p := range h.Ports {
			if text := value(p); p.Active() && text != "" {
				layers[p.LinkLayer] = append(layers[p.LinkLayer], uneven{Port: p, at: portObject(h, p), value: text, hca: h})
				count[p.LinkLayer+text]++
			}
		}
	}
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		ports := layers[layer]
		usual := slices.MaxFunc(ports, func(a, b uneven) int {
			x, _ := speed(a.value)
			y, _ := speed(b.value)
			return cmp.Or(cmp.Compare(count[layer+a.value], count[layer+b.value]), cmp.Compare(x, y))
		})
		for _, p := range ports {
			if p.value != usual.value {
				p.other = usual.at
				p.than = usual.value
				p.most = 2*count[layer+usual.value] > len(ports)
				p.alike = count[layer+p.value]
				found = append(found, p)
			}
		}
	}
	return found
}

// slowPorts finds ports that are slower than the other ports of their board model, and InfiniBand links with one lane.
func slowPorts(v *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	for _, h := range group {
		for _, p := range h.Ports {
			if _, lanes := speed(p.Rate); p.LinkLayer == "InfiniBand" && lanes == 1 && p.Active() {
				found = append(found, doctor.Fault(portObject(h, p), fmt.Sprintf("The port's link uses only one lane (%s), "+
					"but InfiniBand links normally use two or four lanes.", p.Rate),
					"Reseat or replace the cable. To check the result, run: "+h.Tools(p).Link))
			}
		}
	}
	for _, p := range unevenPorts(group, func(p hca.Port) string {
		if gigabits, lanes := speed(p.Rate); gigabits == 0 || isBonded(v, p) || p.LinkLayer == "InfiniBand" && lanes == 1 {
			return ""
		}
		return p.Rate
	}) {
		mine, _ := speed(p.value)
		best, _ := speed(p.than)
		if mine >= best || p.alike > 1 && !p.most {
			continue
		}
		f := doctor.Unsure(p.at, fmt.Sprintf("The port's rate is %s. On a board of the same model, the rate of %s is %s.",
			p.value, p.other, p.than))
		if p.most && p.alike == 1 {
			f = doctor.Fault(p.at, f.Text, "Reseat or replace the cable, and check the switch port. To check the result, run: "+
				p.hca.Tools(p.Port).Link)
		}
		found = append(found, f)
	}
	return found
}

// isBonded reports whether a port is one of several that form an HCA. The HCA's rate is the sum of their rates.
func isBonded(v *doctor.View, p hca.Port) bool {
	return slices.ContainsFunc(p.Netdevs,
		func(netdev string) bool { return v.Any(classNet + netdev + "/bonding_slave") })
}

// fullGIDTable finds RoCE ports whose GID table has no free entry.
func fullGIDTable(v *doctor.View, h hca.HCA, p hca.Port) []doctor.Finding {
	if p.LinkLayer != "Ethernet" {
		return nil
	}
	names, err := v.Glob(fmt.Sprintf(portDir, h.Name, p.Number) + "gids/*")
	if err != nil || len(names) < 16 { // software HCAs and iWARP have small tables
		return nil
	}
	for _, name := range names {
		if strings.Trim(doctor.Attribute(v, name), "0:") == "" {
			return nil
		}
	}
	return []doctor.Finding{doctor.Fault(portObject(h, p),
		fmt.Sprintf("All %d entries of the port's GID table are in use.", len(names)),
		"Each address on the port's netdevs takes up at least two entries. Remove unused addresses. If "+
			"k8s-rdma-shared-dev-plugin shares the HCA, decrease rdmaHcaMax in the device plugin's configuration, and "+
			"restart the device plugin")}
}

// differentMTUs finds RoCE ports whose MTU is unique on their board model. The correct MTU depends on the network.
func differentMTUs(v *doctor.View, group []hca.HCA) (found []doctor.Finding) {
	for _, p := range unevenPorts(group, func(p hca.Port) string {
		if p.LinkLayer != "Ethernet" || len(p.Netdevs) == 0 {
			return ""
		}
		return doctor.Attribute(v, classNet+p.Netdevs[0]+"/mtu")
	}) {
		if p.alike > 1 {
			continue
		}
		found = append(found, doctor.Unsure(p.at, fmt.Sprintf("Netdev %s has MTU %s. On a board of the same model, "+
			"the MTU of %s is %s. If both ports are on the same network, run: ip link set %[1]s mtu %[4]s",
			p.Netdevs[0], p.value, p.other, p.than)))
	}
	return found
}
