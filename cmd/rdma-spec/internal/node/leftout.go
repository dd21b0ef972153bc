// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// leftOut adds a note if a container that requests all HCAs lacks some of the HCAs that the policy grants. It repeats
// the policy's decision for the container without HCAs. If the container has HCAs that the policy would not grant, they
// come from a device plugin.
func (s *surveyor) leftOut(r *Container, c policy.Container, facts policy.Facts) {
	if !c.Injected || len(r.HCAs) == 0 {
		return
	}
	c.Devices = nil
	d := s.policy.Decide(c, facts)
	if d.Grant == nil {
		return
	}
	with := slices.Clone(d.LeftOut) // "mlx5_6 (INIT)"
	for _, dev := range d.Grant.Devices {
		if dev.Kind.Verbs() {
			with = append(with, dev.HCA+" (ACTIVE now)")
		}
	}
	name := func(h string) string { name, _, _ := strings.Cut(h, " "); return name }
	foreign := slices.ContainsFunc(r.HCAs, func(held string) bool {
		return !slices.ContainsFunc(with, func(h string) bool { return name(h) == held })
	})
	without := slices.DeleteFunc(with, func(h string) bool { return slices.Contains(r.HCAs, name(h)) })
	if len(without) > 0 && !foreign {
		r.Notes = append(r.Notes, "the container is running without some of the HCAs that it requests: "+
			strings.Join(without, ", ")+"; when their ports are ACTIVE, recreate the pod")
	}
}
