// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// ports adds the findings about each HCA that the container holds: whether a port is ACTIVE, and with RoCE which GIDs
// are addresses of the container. The names of netdevs in the GID table prove nothing: interfaces of other namespaces
// may have the same. An InfiniBand port's GIDs belong to no namespace, and not all kernels list those of an iWARP HCA.
//
// A privileged container holds more HCAs than are meant for it: one that works is enough.
func (v *verification) ports(held []heldHCA) {
	if v.judged.Unread != "" && len(held) > 0 {
		v.add("gid", doctor.Unknown, "GIDs: the addresses of this network namespace cannot be read: %s", v.judged.Unread)
	}
	_, err := v.tree.Stat("dev/kmsg") // which only a privileged container has
	var failing []func()
	works := false
	fails := func(check string, why cause, format string, args ...any) {
		failing = append(failing, func() {
			if err == nil && works {
				v.add(check, note, format+" (this container is privileged, and another of its HCAs works)", args...)
				return
			}
			v.fails(check, why, format, args...)
		})
	}
	for _, h := range held {
		if h.hca.Name != "" && h.hca.Unread == "" && !h.hca.Active() {
			fails("port", causePort,
				"ports of %s: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager", h.hca.Name)
		}
		for _, p := range h.hca.Ports {
			if !p.Active() || v.judged.Unread != "" {
				continue
			}
			if p.LinkLayer != "Ethernet" || h.hca.NodeType != "CA" {
				works = true
				continue
			}
			name := fmt.Sprintf("GIDs of %s port %d", h.hca.Name, p.Number)
			table, own, usable := v.ownGIDs(h.hca, p)
			works = works || usable
			switch all := strings.Join(own, ", "); {
			case usable:
				v.add("gid", doctor.OK, "%s in this network namespace: %s", name, all)
			case !table:
				v.add("gid", doctor.Unknown, "%s: the driver lists none", name)
			case len(own) > 0:
				fails("gid", causeAddress, "%s in this network namespace: only %s, which NCCL and RDMA_CM do not use: give the "+
					"HCA's interface an IP address", name, all)
			default:
				fails("gid", causeNamespace,
					"%s: none belongs to this network namespace, so RDMA_CM does not find the HCA, and programs report "+
						"Failed to query GID: give the pod the HCA's netdev by macvlan or SR-IOV, or use hostNetwork", name)
			}
		}
	}
	for _, fail := range failing {
		fail()
	}
}

// ownGIDs returns those GIDs of a port that are addresses of the container, each with its index and its type, and
// whether programs use one of them. table is false where the port has none at all.
func (v *verification) ownGIDs(h hca.HCA, p hca.Port) (table bool, own []string, usable bool) {
	all, _ := process.GIDs(fmt.Sprintf("sys/class/infiniband/%s/ports/%d", h.Name, p.Number), v.tree.Match,
		func(name string) (string, error) { return v.read(name), nil })
	mine, usable := v.judged.Own(all)
	for _, gid := range mine {
		own = append(own, fmt.Sprintf("%d (%s, %s)", gid.Index, gid.Address, cli.OrUnknown(gid.Type)))
	}
	return len(all) > 0, slices.Clip(own), usable
}
