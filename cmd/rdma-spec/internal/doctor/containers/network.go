// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// networkChecks are the checks of what the network of containers has. They compare addresses: pods call their
// interfaces as they like, and those of all pods have the same names.
func networkChecks() []doctor.Check {
	needs := []string{"port-active", "container-hca"}
	return []doctor.Check{{
		ID: "container-netdev", Family: "containers",
		Title:  "Each container with its own network namespace has an IP address for each of its RoCE HCAs.",
		Impact: "Without the address, programs have no GID and cannot connect.",
		Reads:  doctor.GIDReads, Needs: needs, Look: eachContainer(containerNetdev),
	}, {
		ID: "container-gid-index", Family: "containers",
		Title:  "In each container, NCCL_IB_GID_INDEX selects one of the container's own GIDs.",
		Impact: "Programs that use another pod's GID cannot connect.",
		Reads:  doctor.GIDReads, Needs: append(needs, "container-netdev"), Look: eachContainer(containerGIDIndex),
	}, {
		ID: "container-environment", Family: "containers",
		Title: "Each container has the HCAs and interfaces that its environment variables name.",
		Impact: "NCCL and UCX use only the HCAs and interfaces that these variables name. If a variable names " +
			"none that the container has, NCCL and UCX fail or fall back to sockets.",
		Needs: []string{"container-hca"}, Look: eachContainer(containerEnvironment),
	}, {
		ID: "container-mtu", Family: "containers",
		Title:      "The MTU of each container interface is not larger than its HCA function's MTU.",
		NoMessages: "programs connect, but large transfers time out",
		Impact:     "The function drops packets that are larger than its own MTU.",
		Reads:      doctor.GIDReads, Needs: needs, Look: eachContainer(containerMTU),
	}, {
		ID: "container-routes", Family: "containers",
		Title:  "Each HCA of a container can answer other nodes.",
		Impact: "Other nodes can send to this HCA, but get no reply from it.",
		Reads:  doctor.GIDReads, Needs: needs, Look: containerRoutes,
	}}
}

// rail is a port with RoCE of an HCA that a container holds.
type rail struct {
	hca    hca.HCA
	active bool
	object string
	table  []process.GID
	err    error         // why the table is unknown
	own    []process.GID // the container's
	usable bool          // one of them is more than link-local
	link   *process.Link // that has them, nil where it is not known
	subnet netip.Prefix
}

// rails returns the ports with RoCE that a container holds, and that NCCL_IB_HCA does not leave out. The GIDs of other
// ports belong to no network namespace.
func rails(v *doctor.View, c node.Container) (found []rail) {
	chosen := c.Env["NCCL_IB_HCA"]
	for _, h := range heldHCAs(v, c) {
		if chosen != "" && !chooses(chosen, h.Name, true) {
			continue
		}
		for _, p := range h.Ports {
			if p.LinkLayer == "Ethernet" && h.NodeType == "CA" {
				r := rail{hca: h, active: p.Active(), object: fmt.Sprintf("%s HCA %s", containerObject(c), h.Name)}
				r.table, r.err = v.GIDs(h.Name, p.Number)
				r.own, r.usable = c.Own(r.table)
				r.link, r.subnet = c.LinkOf(r.own)
				found = append(found, r)
			}
		}
	}
	return found
}

func containerNetdev(v *doctor.View, c node.Container) (found []doctor.Finding) {
	all := rails(v, c)
	if !c.Known || !c.OwnNetwork || c.AllDevices && slices.ContainsFunc(all, func(r rail) bool { return r.usable }) {
		return nil // a privileged container holds more HCAs than are meant for it
	}
	for _, r := range all {
		other, address, oneHCA := sharing(v, c, r)
		switch {
		case other != "" && !oneHCA: // which VLAN a function has is not known
			found = append(found, doctor.Unsure(r.object, fmt.Sprintf("Pod %s on this node has the same address, %s, on a "+
				"different HCA. If both HCAs are in one network, packets for one of the pods can reach the "+
				"other.", other, address)))
		case other != "":
			found = append(found, doctor.Fault(r.object, fmt.Sprintf("Pod %s on this node has the same address, %s. Packets "+
				"for one of the pods can reach the other.", other, address),
				"Give each pod its own address: use an IPAM plugin, such as whereabouts, that shares one range across all pods, "+
					"and recreate one of the pods"))
		case r.usable && !slices.ContainsFunc(r.own, func(g process.GID) bool { return g.Type != "IB/RoCE v1" }):
			found = append(found, doctor.Told(r.object, "All its GIDs are RoCE v1, which routers do not forward."))
		case !r.active || r.usable:
		case r.err != nil:
			found = append(found, doctor.Unsure(r.object, "Its GIDs are unknown: "+r.err.Error()+"."))
		case len(r.table) == 0:
			found = append(found, doctor.Unsure(r.object, "The driver does not list its GIDs."))
		case c.Silent:
			found = append(found, doctor.Unsure(r.object,
				"The container's files could not be read in time, so the MAC addresses of its interfaces are unknown."))
		case len(r.own) > 0 && c.HugePages:
			found = append(found, doctor.Unsure(r.object, fmt.Sprintf("The only address of the HCA's interface in the "+
				"container is %s, which NCCL and RDMA_CM do not use. The container has huge pages, so it might run DPDK, which "+
				"needs no address.", r.own[0].Address)))
		case len(r.own) > 0:
			found = append(found, doctor.Fault(r.object, fmt.Sprintf(
				"The only address of the HCA's interface in the container is %s, which NCCL and RDMA_CM do not use.",
				r.own[0].Address),
				"Set ipam in the NetworkAttachmentDefinition of the interface, and recreate the pod"))
		default:
			has := strings.Trim(fmt.Sprint(c.Addresses), "[]")
			if has == "" {
				has = "only loopback addresses"
			}
			fix := "Give the pod an interface on the HCA (macvlan, ipvlan or SR-IOV with Multus), or set hostNetwork: true"
			if others := ofInfiniBand(v, c); len(others) > 0 {
				fix = "The resource also contains InfiniBand HCAs. Exclude PCI device " + r.hca.PCI + " from the device " +
					"plugin's selector, or set NCCL_IB_HCA=" + strings.Join(others, ",") + " in the pod"
			}
			found = append(found, doctor.Fault(r.object,
				fmt.Sprintf("None of the container's addresses (%s) is a GID of the HCA.", has), fix))
		}
	}
	return found
}

// ofInfiniBand returns the HCAs of InfiniBand that a container holds, which need no interface.
func ofInfiniBand(v *doctor.View, c node.Container) (names []string) {
	for _, h := range heldHCAs(v, c) {
		if h.ForPrograms() && slices.ContainsFunc(h.Ports, func(p hca.Port) bool { return p.LinkLayer == "InfiniBand" }) {
			names = append(names, h.Name)
		}
	}
	return names
}

// sharing returns a pod that comes before a container's and has one of its rail's addresses in a network of its own: if
// there is one, a pod that holds the same HCA.
func sharing(v *doctor.View, c node.Container, r rail) (pod string, address netip.Addr, oneHCA bool) {
	answer, _ := v.Containers() // which has the container
	for _, other := range answer.Containers {
		if other.PodName() >= c.PodName() {
			break
		}
		for _, g := range r.own {
			if other.OwnNetwork && !g.Address.IsLinkLocalUnicast() && slices.Contains(other.Addresses, g.Address) {
				pod = other.PodName()
				address = g.Address
				oneHCA = slices.Contains(other.HCAs, r.hca.Name)
			}
		}
		if oneHCA {
			break
		}
	}
	return pod, address, oneHCA
}

// whyLocal says why a GID does not reach other networks, "" if it does.
func whyLocal(g process.GID) string {
	switch {
	case g.Address.IsLinkLocalUnicast():
		return "reaches only its own link"
	case g.Type == "IB/RoCE v1":
		return "is a RoCE v1 GID, and routers do not forward RoCE v1 packets"
	}
	return ""
}

// containerGIDIndex looks at the index in the container's spec. What a program sets by itself is not seen.
func containerGIDIndex(v *doctor.View, c node.Container) (found []doctor.Finding) {
	index, err := strconv.Atoi(c.Env["NCCL_IB_GID_INDEX"])
	if err != nil || index < 0 || !c.Known { // NCCL chooses where it is negative
		return nil
	}
	for _, r := range rails(v, c) {
		at := func(g process.GID) bool { return g.Index == index }
		i := slices.IndexFunc(r.table, at)
		own := slices.IndexFunc(r.own, at)
		better := slices.IndexFunc(r.own, func(g process.GID) bool { return whyLocal(g) == "" })
		if own >= 0 && better >= 0 && whyLocal(r.own[own]) != "" {
			found = append(found, doctor.Told(r.object, "Its NCCL_IB_GID_INDEX is %d, which selects the GID %s. That GID %s. "+
				"If connections time out, remove the variable: the GID %s at index %d reaches other "+
				"networks.", index, r.own[own].Address, whyLocal(r.own[own]),
				r.own[better].Address, r.own[better].Index))
		}
		if r.err != nil || len(r.table) == 0 || c.Silent || own >= 0 ||
			len(r.own) == 0 && (c.AllDevices || i >= 0 && !c.OwnNetwork) {
			continue // container-netdev says what is unknown
		}
		text := fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, but the HCA has no GID at that index.", index)
		if i >= 0 {
			text = fmt.Sprintf("Its NCCL_IB_GID_INDEX is %d, which selects the GID %s. The container does not have this "+
				"address.",
				index, r.table[i].Address)
		}
		if len(r.own) > 0 {
			text = fmt.Sprintf("%s Its own GID is %s, at index %d.", text,
				r.own[len(r.own)-1].Address, r.own[len(r.own)-1].Index)
		}
		found = append(found, doctor.Fault(r.object, text,
			"Remove NCCL_IB_GID_INDEX from the pod: NCCL 2.21 and later find the GID automatically, but only NCCL "+
				"2.26 and later do so in all pods"))
	}
	return found
}

// containerEnvironment looks at the variables of the container's spec. A name beside others that it has is left out by
// the programs, and no fault.
func containerEnvironment(_ *doctor.View, c node.Container) (found []doctor.Finding) {
	var links []string
	for _, l := range c.Links {
		links = append(links, l.Name)
	}
	all := map[string][]string{"NCCL_IB_HCA": c.HCAs, "NCCL_SOCKET_IFNAME": links,
		"UCX_NET_DEVICES": slices.Concat(c.HCAs, links)}
	for _, variable := range slices.Sorted(maps.Keys(all)) {
		value := c.Env[variable]
		has := all[variable]
		chosen := func(name string) bool { return chooses(value, name, variable != "UCX_NET_DEVICES") }
		if value == "" || len(c.HCAs)*len(links) == 0 || slices.ContainsFunc(has, chosen) {
			continue
		}
		found = append(found, doctor.Fault(containerObject(c),
			fmt.Sprintf("%s=%q matches none of the names in the container: %s.", variable, value,
				strings.Join(has, ", ")),
			fmt.Sprintf("Remove %s from the pod, or set it to names that do not change when the pod is recreated", variable)))
	}
	return found
}

// chooses reports whether a variable chooses an interface or an HCA. Its names are separated by commas, and can end
// with a port: "mlx5_0:1". "^" in front leaves out what is named, and "=" wants whole names, where NCCL takes
// beginnings. UCX takes whole names and patterns.
func chooses(value, name string, beginnings bool) bool {
	value, leaves := strings.CutPrefix(value, "^")
	value, whole := strings.CutPrefix(value, "=")
	return leaves != slices.ContainsFunc(strings.Split(value, ","), func(named string) bool {
		named, _, _ = strings.Cut(named, ":")
		like, _ := path.Match(named, name)
		return like || beginnings && !whole && strings.HasPrefix(name, named) || !beginnings && named == "all"
	})
}

func containerMTU(v *doctor.View, c node.Container) (found []doctor.Finding) {
	all, err := v.HCAs()
	if err != nil || !c.OwnNetwork {
		return nil
	}
	for _, r := range rails(v, c) {
		of := r.hca
		netdev := ""
		most := 0
		if i := slices.IndexFunc(all.HCAs, func(h hca.HCA) bool { return h.PCI != "" && h.PCI == of.Parent }); i >= 0 {
			of = all.HCAs[i]
		}
		for _, p := range of.Ports {
			for _, name := range p.Netdevs { // what is stacked on the function's own can have less
				if mtu, _ := strconv.Atoi(doctor.Attribute(v, "sys/class/net/"+name+"/mtu")); mtu > most {
					netdev = name
					most = mtu
				}
			}
		}
		if r.link != nil && most > 0 && most < c.MTU[r.link.Name] {
			found = append(found, doctor.Fault(r.object, fmt.Sprintf(
				"Its interface %s has an MTU of %d, but %s of HCA %s has an MTU of only %d.",
				r.link.Name, c.MTU[r.link.Name], netdev, of.Name, most),
				fmt.Sprintf(`Set "mtu": %d in the interface's NetworkAttachmentDefinition, and recreate the pod`, most)))
		}
	}
	return found
}
