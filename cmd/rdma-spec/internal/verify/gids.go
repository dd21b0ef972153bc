// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
)

// portGIDs are the GIDs of a port that belong to the network namespace.
type portGIDs struct {
	port string   // with its HCA
	own  []string // each with its index and its type
}

// gids finds the GIDs that the container's network namespace has with RoCE. They are addresses of its interfaces. The
// names of netdevs in the GID table prove nothing: interfaces of other namespaces may have the same. An InfiniBand
// port's GIDs belong to no namespace, and not all kernels list those of an iWARP HCA.
func (v *verification) gids(held []heldHCA, image process.Image) {
	addresses, err := process.ReadAddresses(v.root, v.self)
	if err != nil {
		v.add("gid", doctor.Unknown, "GIDs: the addresses of this network namespace cannot be read: %v", err)
		return
	}
	var ports []portGIDs
	usable := false // as far as can be told
	for _, h := range held {
		usable = usable || !h.known
		for _, p := range h.hca.Ports {
			switch {
			case !p.Active():
			case p.LinkLayer != "Ethernet" || h.hca.NodeType != "CA":
				usable = true
			default:
				folder := filepath.Join(v.root, "sys/class/infiniband", h.hca.Name, "ports", strconv.Itoa(p.Number))
				found := portGIDs{fmt.Sprintf("%s port %d", h.hca.Name, p.Number),
					ownGIDs(folder, process.Inside{Addresses: addresses, Image: image})}
				ports, usable = append(ports, found), usable || len(found.own) > 0
			}
		}
	}
	for _, p := range ports {
		switch {
		case len(p.own) > 0:
			v.add("gid", doctor.OK, "GIDs of %s in this network namespace: %s", p.port, strings.Join(p.own, ", "))
		case usable:
			v.add("gid", note, "GIDs of %s: none belongs to this network namespace", p.port)
		default:
			v.fails("gid", causeNamespace,
				"GIDs of %s: none belongs to this network namespace, so RDMA_CM does not find the HCA, and programs report "+
					"Failed to query GID: give the pod the HCA's netdev by macvlan or SR-IOV, or use hostNetwork", p.port)
		}
	}
}

// ownGIDs returns those GIDs of a port that are addresses of a container.
func ownGIDs(port string, c process.Inside) (own []string) {
	files, _ := filepath.Glob(filepath.Join(port, "gids/*")) // the pattern is well-formed
	table, _ := process.GIDs(files, func(file string) (string,
		error) {
		text, err := os.ReadFile(file)
		return string(text), err
	})
	for _, gid := range table {
		if c.Owns(gid.Address) {
			kind := attribute(filepath.Join(port, "gid_attrs/types", strconv.Itoa(gid.Index)))
			own = append(own, fmt.Sprintf("%d (%s, %s)", gid.Index, gid.Address, cmp.Or(kind, "unknown")))
		}
	}
	return own
}
