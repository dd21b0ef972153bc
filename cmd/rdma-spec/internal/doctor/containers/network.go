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

// networkChecks returns the checks of the containers' networks. The checks compare addresses instead of names, because
// pods choose the names of their interfaces, and different pods use the same names.
func networkChecks() []doctor.Check {
	needs := []string{"port-active", "container-hca"}
	return []doctor.Check{{
		ID: "container-netdev", Family: "containers",
		Title:  "Each container with its own network namespace has an IP address for each of its RoCE HCAs.",
		Impact: "Without an IP address on the HCA, programs have no GID and cannot connect.",
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
			"none of the container's HCAs or interfaces, NCCL and UCX fail or fall back to sockets.",
		Needs: []string{"container-hca"}, Look: eachContainer(containerEnvironment),
	}, {
		ID: "container-mtu", Family: "containers",
		Title:      "No container interface has a larger MTU than its HCA function.",
		NoMessages: "programs connect, but large transfers time out",
		Impact:     "The function drops packets that are larger than its own MTU.",
		Reads:      doctor.GIDReads, Needs: needs, Look: eachContainer(containerMTU),
	}, {
		ID: "container-routes", Family: "containers",
		Title:  "Each of a container's HCAs can reply to other nodes.",
		Impact: "Other nodes can send packets to the HCA, but receive no reply.",
		Reads:  doctor.GIDReads, Needs: needs, Look: containerRoutes,
	}}
}

// rail is a RoCE port of an HCA that a container has.
type rail struct {
	hca    hca.HCA
	active bool
	object string
	table  []process.GID
	err    error         // why the table is unknown
	own    []process.GID // the container's own GIDs
	usable bool          // one of them is not link-local
	link   *process.Link // the interface that has them; nil if it is unknown
	subnet netip.Prefix
}

// rails returns the container's RoCE ports that NCCL_IB_HCA does not exclude. GIDs of other ports do not belong to a
// network namespace.
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
		return nil // a privileged container has HCAs that are not meant for it
	}
	for _, r := range all {
		other, address, oneHCA := sharing(v, c, r)
		switch {
		case other != "" && !oneHCA: // the VLANs of the functions are unknown
			found = append(found, doctor.Unsure(r.object, fmt.Sprintf("Pod %s on this node also has the container's "+
				"address %s, on a different HCA. If the two HCAs are in the same network, packets for one pod can reach the "+
				"other pod.", other, address)))
		case other != "":
			found = append(found, doctor.Fault(r.object, fmt.Sprintf("Pod %s on this node also has the container's address "+
				"%s. Packets for one pod can reach the other pod.", other, address),
				"To give each pod its own address, use an IPAM plugin, such as Whereabouts, that manages one "+
					"address range for all nodes. Then recreate one of the pods"))
		case r.usable && !slices.ContainsFunc(r.own, func(g process.GID) bool { return g.Type != "IB/RoCE v1" }):
			found = append(found, doctor.Told(r.object, "The container has only RoCE v1 GIDs on this HCA. Routers do not "+
				"forward RoCE v1 packets."))
		case !r.active || r.usable:
		case r.err != nil:
			found = append(found, doctor.Unsure(r.object, "The HCA's GIDs are unknown: "+r.err.Error()+"."))
		case len(r.table) == 0:
			found = append(found, doctor.Unsure(r.object, "The driver does not list the HCA's GIDs."))
		case c.Silent:
			found = append(found, doctor.Unsure(r.object,
				"The doctor could not read the container's files in time, so the MAC addresses of the container's interfaces are "+
					"unknown."))
		case len(r.own) > 0 && c.HugePages:
			found = append(found, doctor.Unsure(r.object, fmt.Sprintf("In the container, the only address of the HCA's "+
				"interface is %s. NCCL and RDMA_CM do not use this address. The container has huge pages, so it might run DPDK, "+
				"which needs no address.", r.own[0].Address)))
		case len(r.own) > 0:
			found = append(found, doctor.Fault(r.object, fmt.Sprintf(
				"In the container, the only address of the HCA's interface is %s. NCCL and RDMA_CM do not use this address.",
				r.own[0].Address),
				"Set ipam in the interface's NetworkAttachmentDefinition, and recreate the pod"))
		default:
			has := strings.Trim(fmt.Sprint(c.Addresses), "[]")
			if has == "" {
				has = "only loopback addresses"
			}
			fix := "Use Multus to give the pod an interface on the HCA (macvlan, ipvlan, or SR-IOV). Or set " +
				"hostNetwork: true in the pod"
			if others := ofInfiniBand(v, c); len(others) > 0 {
				fix = "The pod's resource also includes InfiniBand HCAs. Exclude PCI device " + r.hca.PCI + " from the device " +
					"plugin's selector, or set NCCL_IB_HCA=" + strings.Join(others, ",") + " in the pod"
			}
			found = append(found, doctor.Fault(r.object,
				fmt.Sprintf("None of the container's addresses (%s) is a GID of the HCA.", has), fix))
		}
	}
	return found
}

// ofInfiniBand returns the container's InfiniBand HCAs, which need no interface.
func ofInfiniBand(v *doctor.View, c node.Container) (names []string) {
	for _, h := range heldHCAs(v, c) {
		if h.ForPrograms() && slices.ContainsFunc(h.Ports, func(p hca.Port) bool { return p.LinkLayer == "InfiniBand" }) {
			names = append(names, h.Name)
		}
	}
	return names
}

// sharing returns a pod that sorts before the container's pod, has its own network namespace, and has one of the rail's
// addresses. It prefers a pod that has the same HCA.
func sharing(v *doctor.View, c node.Container, r rail) (pod string, address netip.Addr, oneHCA bool) {
	answer, _ := v.Containers() // without an error, because the container comes from this answer
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

// whyLocal returns the reason why a GID does not reach other networks, or "" if it does.
func whyLocal(g process.GID) string {
	switch {
	case g.Address.IsLinkLocalUnicast():
		return "is link-local and reaches only hosts on the same link"
	case g.Type == "IB/RoCE v1":
		return "is a RoCE v1 GID, and routers do not forward RoCE v1 packets"
	}
	return ""
}

// containerGIDIndex checks the index in the container's spec. It does not see an index that a program sets by itself.
func containerGIDIndex(v *doctor.View, c node.Container) (found []doctor.Finding) {
	index, err := strconv.Atoi(c.Env["NCCL_IB_GID_INDEX"])
	if err != nil || index < 0 || !c.Known { // NCCL chooses if it is negative
		return nil
	}
	for _, r := range rails(v, c) {
		at := func(g process.GID) bool { return g.Index == index }
		i := slices.IndexFunc(r.table, at)
		own := slices.IndexFunc(r.own, at)
		better := slices.IndexFunc(r.own, func(g process.GID) bool { return whyLocal(g) == "" })
		if own >= 0 && better >= 0 && whyLocal(r.own[own]) != "" {
			found = append(found, doctor.Told(r.object, "The container's NCCL_IB_GID_INDEX is %d, which selects the GID %s. "+
				"This GID %s. The GID %s at index %d reaches other networks. If connections time out, remove the variable.",
				index, r.own[own].Address, whyLocal(r.own[own]), r.own[better].Address, r.own[better].Index))
		}
		if r.err != nil || len(r.table) == 0 || c.Silent || own >= 0 ||
			len(r.own) == 0 && (c.AllDevices || i >= 0 && !c.OwnNetwork) {
			continue // container-netdev reports unknown GIDs
		}
		text := fmt.Sprintf("The container's NCCL_IB_GID_INDEX is %d, but the HCA has no GID at that index.", index)
		if i >= 0 {
			text = fmt.Sprintf("The container's NCCL_IB_GID_INDEX is %d, which selects the GID %s. The container does not "+
				"have this address.", index, r.table[i].Address)
		}
		if len(r.own) > 0 {
			text = fmt.Sprintf("%s The container's own GID is %s, at index %d.", text,
				r.own[len(r.own)-1].Address, r.own[len(r.own)-1].Index)
		}
		found = append(found, doctor.Fault(r.object, text,
			"Remove NCCL_IB_GID_INDEX from the pod's template, and recreate the pod. Do not set a different index, because the "+
				"index can differ in each new pod. NCCL 2.26 and later find the GID automatically in all pods; NCCL 2.21 to "+
				"2.25 find it only in some pods"))
	}
	return found
}

// containerEnvironment checks the variables in the container's spec. If a variable also names an HCA or interface that
// the container has, programs ignore the other names, so there is no fault.
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
			fmt.Sprintf("%s=%q does not match any name in the container (%s).", variable, value,
				strings.Join(has, ", ")),
			fmt.Sprintf("Remove %s from the pod, or set the variable to names that do not change when the pod is recreated",
				variable)))
	}
	return found
}

// chooses reports whether a variable selects an interface or an HCA. The variable's names are separated by commas, and
// can end with a port: "mlx5_0:1". A leading "^" excludes the names. For NCCL, names are prefixes, or whole names after
// a leading "=". For UCX, names are whole names or patterns.
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
			for _, name := range p.Netdevs { // netdevs stacked on the function's own can have a lower MTU
				if mtu, _ := strconv.Atoi(doctor.Attribute(v, "sys/class/net/"+name+"/mtu")); mtu > most {
					netdev = name
					most = mtu
				}
			}
		}
		if r.link != nil && most > 0 && most < c.MTU[r.link.Name] {
			found = append(found, doctor.Fault(r.object, fmt.Sprintf(
				"The container's %s interface has an MTU of %d, but the %s interface of HCA %s has an MTU of only %d.",
				r.link.Name, c.MTU[r.link.Name], netdev, of.Name, most),
				fmt.Sprintf(`Set "mtu": %d in the interface's NetworkAttachmentDefinition, and recreate the pod`, most)))
		}
	}
	return found
}
