// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// containerRoutes checks the routes of containers with several rails. It reports rails in the same subnet, and subnets
// without a route between them. It reports each fault of the node's own network only once. It ignores containers with
// policy routing, because routing rules can make every route correct.
func containerRoutes(v *doctor.View) []doctor.Finding {
	said := map[string]bool{}
	return eachContainer(func(v *doctor.View, c node.Container) []doctor.Finding {
		return slices.DeleteFunc(routesOf(v, c), func(f doctor.Finding) bool {
			before := said[f.Object]
			said[f.Object] = true
			return before
		})
	})(v)
}

func routesOf(v *doctor.View, c node.Container) (found []doctor.Finding) {
	if c.PolicyRouting {
		return nil
	}
	object := containerObject(c)
	if !c.OwnNetwork {
		object = "the node's network"
	}
	bySubnet := map[netip.Prefix][]rail{}
	joined := 0
	for _, r := range rails(v, c) {
		if r.subnet.IsValid() {
			bySubnet[r.subnet] = append(bySubnet[r.subnet], r)
		}
	}
	subnets := slices.SortedFunc(maps.Keys(bySubnet), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	var isolated []string
	for _, subnet := range subnets {
		links := slices.DeleteFunc(slices.Clone(c.Links),
			func(l process.Link) bool { return !slices.Contains(l.Subnets, subnet) })
		if slices.ContainsFunc(links, func(l process.Link) bool { return l.Gateway }) {
			joined++
		} else {
			isolated = append(isolated, links[0].Name)
		}
		if len(bySubnet[subnet]) > 1 && len(links) > 1 {
			found = append(found, sharedSubnet(c, subnet, object, bySubnet[subnet], links))
		}
	}
	switch {
	case len(subnets) < 2 || len(isolated) == 0:
	case joined == 0:
		found = append(found, doctor.Told(object, "The rails (%s) have no route to each other. If each rail is meant to "+
			"reach only the same rail on other nodes, no route is needed. For this setup, set NCCL_CROSS_NIC=0 for NCCL, or "+
			"enable PXN for RCCL. For any other setup, add a gateway to each rail.", strings.Join(isolated, ", ")))
	default:
		found = append(found, doctor.Told(object, "Some interfaces have a gateway. Interfaces without a gateway (%s) can "+
			"reach only their own subnets.", strings.Join(isolated, ", ")))
	}
	return found
}

// sharedSubnet reports rails in the same subnet. With a strict filter, the kernel drops packets that arrive at an
// interface through which it does not answer, whatever the addresses of the interfaces are.
func sharedSubnet(c node.Container, subnet netip.Prefix, object string, all []rail,
	links []process.Link) doctor.Finding {
	object += " HCA " + all[0].hca.Name // addresses differ in an anonymous support bundle
	var hcas, names []string
	for _, r := range all {
		hcas = append(hcas, r.hca.Name)
	}
	for _, l := range links {
		names = append(names, l.Name)
	}
	of := fmt.Sprintf("The interfaces %s of HCAs %s are in the same subnet, %s", strings.Join(names, ", "),
		strings.Join(hcas, ", "), subnet)
	// IPv6 has no such filter.
	if subnet.Addr().Is6() || slices.ContainsFunc(links, func(l process.Link) bool { return !l.Strict }) {
		return doctor.Told(object, "%s. The kernel answers through only one of the interfaces.", of)
	}
	text := of + ", and rp_filter is strict. The kernel answers through only one of the interfaces, and drops packets " +
		"that arrive on the other interfaces."
	if c.AllDevices { // it has HCAs that are not meant for it
		return doctor.Unsure(object, text)
	}
	fix := "In the pod's networks, set rp_filter to 2, arp_ignore to 1, and arp_announce to 2 with the tuning CNI " +
		"plugin, and add a routing rule for each interface with the sbr CNI plugin. Instead of these changes, you can give " +
		"each interface its own subnet, with a gateway to the other subnets. Finally, recreate the pod"
	if !c.OwnNetwork {
		fix = "On the node, set rp_filter to 2, arp_ignore to 1, and arp_announce to 2, and add a routing rule for each " +
			"interface. Instead of these changes, you can give each interface its own subnet, with a gateway to the other " +
			"subnets"
	}
	return doctor.Fault(object, text, fix)
}
