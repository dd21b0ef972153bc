// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// leftOut notes which HCAs a container runs without that the policy gives to those that ask for all, by a decision
// about it as it was before it had any. A container with HCAs that the policy would not give has them from a device
// plugin.
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
		r.Notes = append(r.Notes, "it is running without some HCAs that it requests: "+strings.Join(without, ", ")+
			": once their ports are ACTIVE, recreate the pod")
	}
}
