// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// ports adds the findings about each HCA of the container: whether a port is ACTIVE and, for RoCE, the GIDs that are
// addresses of the container. The names of netdevs in the GID table are not checked, because interfaces of other
// namespaces can have the same names. The GIDs of an InfiniBand port belong to no namespace, and not all kernels list
// the GIDs of an iWARP HCA.
//
// A privileged container has all HCAs of the node, so one usable HCA is sufficient.
func (v *verification) ports(held []heldHCA) {
	if v.judged.Unread != "" && len(held) > 0 {
		v.add("gid", doctor.Unknown, "GIDs: cannot read the addresses of this network namespace: %s", v.judged.Unread)
	}
	first := len(v.Findings)
	works := false
	for _, h := range held {
		if h.hca.Name != "" && h.hca.Unread == "" && !h.hca.Active() {
			v.addFault("port", causePort,
				"ports of %s: none is ACTIVE: check the cable, the switch, and, on InfiniBand, the subnet manager", h.hca.Name)
		}
		for _, p := range h.hca.Ports {
			if p.Active() && v.judged.Unread == "" {
				works = p.LinkLayer != "Ethernet" || h.hca.NodeType != "CA" || v.gids(h.hca.Name, p.Number) || works
			}
		}
	}
	if _, err := v.seen.Files.Stat("dev/kmsg"); err != nil || !works { // a privileged container has /dev/kmsg
		return
	}
	for i := range v.Findings[first:] {
		if f := &v.Findings[first+i]; f.Status == doctor.Wrong {
			f.Status = note
			f.Impact = ""
		}
	}
}

// gids adds the finding about the GIDs of a RoCE port, and reports whether programs can use a GID.
func (v *verification) gids(name string, port int) bool {
	table, _ := v.seen.GIDs(name, port) // an unreadable table counts as empty
	own, usable := v.judged.Own(table)
	var all []string
	for _, gid := range own {
		all = append(all, fmt.Sprintf("%d (%s, %s)", gid.Index, gid.Address, cmp.Or(gid.Type, "unknown")))
	}
	of := fmt.Sprintf("GIDs of %s port %d", name, port)
	said := strings.Join(all, ", ")
	switch {
	case usable:
		v.add("gid", doctor.OK, "%s in this network namespace: %s", of, said)
	case len(table) == 0:
		v.add("gid", doctor.Unknown, "%s: the driver lists no GIDs", of)
	case len(own) > 0:
		v.addFault("gid", causeAddress, "%s in this network namespace: only %s, which NCCL and RDMA_CM do not "+
			"use: give the HCA's interface an IP address", of, said)
	default:
		v.addFault("gid", causeNamespace,
			"%s: no GID belongs to this network namespace, so RDMA_CM does not find the HCA, and programs "+
				"report \"Failed to query GID\": give the pod the HCA's netdev through macvlan or SR-IOV, or use hostNetwork", of)
	}
	return usable
}
