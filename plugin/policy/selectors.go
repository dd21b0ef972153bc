// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// passes reports whether the selectors select an HCA, with a port that also meets a condition.
func (s Selectors) passes(h hca.HCA, condition func(hca.Port) bool) bool {
	if !matchesAny(s.Names, h.Name) || len(s.NUMANodes) > 0 && !slices.Contains(s.NUMANodes, h.NUMANode) {
		return false
	}
	if !slices.Contains(s.Functions, string(cmp.Or(h.Function, hca.FunctionPhysical))) { // guard: functions
		return false
	}
	return slices.ContainsFunc(h.Ports, func(p hca.Port) bool {
		linkLayer := len(s.LinkLayers) == 0 || slices.Contains(s.LinkLayers, p.LinkLayer)
		netdev := len(s.Netdevs) == 0 || slices.ContainsFunc(p.Netdevs,
			func(n string) bool { return matchesAny(s.Netdevs, n) })
		return linkLayer && netdev && condition(p)
	})
}

func anyPort(hca.Port) bool { return true }

// inventory lists a node's HCAs for a refusal, with the state of a port: "mlx5_0 (INIT), mlx5_1 (ACTIVE)".
func inventory(node *hca.Inventory) string {
	if len(node.HCAs) == 0 {
		return "none"
	}
	return shortList(node.HCAs, func(h hca.HCA) string {
		state := ""
		for _, p := range h.Ports {
			if state != hca.StateActive {
				state = p.State
			}
		}
		return fmt.Sprintf("%s (%s)", h.Name, cmp.Or(state, "unknown"))
	})
}

// mostListed bounds how many things a message lists.
const mostListed = 16

// shortList lists things for a message, the first of them where there are many.
func shortList[T any](things []T, word func(T) string) string {
	var words []string
	for i, thing := range things {
		if i == mostListed { // guard: list-length
			words = append(words, fmt.Sprintf("%d more", len(things)-mostListed))
			break
		}
		words = append(words, word(thing))
	}
	return strings.Join(words, ", ")
}
