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

// Wants returns a function that reports whether a decision might depend on an HCA, and the parts of HCAs that decisions
// might depend on. The function needs only the properties that a list of HCAs contains.
func (p *Policy) Wants() (hcas func(*hca.HCA) bool, parts hca.Parts) {
	var able []Selectors
	for _, r := range append(slices.Clone(p.rules), p.defaults) {
		if r.always || len(p.config.Inject.Namespaces) > 0 {
			able = append(able, r.selectors)
			parts.Netdevs = parts.Netdevs || len(r.selectors.Netdevs) > 0
			parts.Management = parts.Management || r.selectors.Management
		}
	}
	return func(h *hca.HCA) bool {
		return slices.ContainsFunc(able, func(s Selectors) bool { return s.selectsListed(h) })
	}, parts
}

// selectsListed reports whether the selectors might select an HCA, according to the properties that a list of HCAs
// contains.
func (s Selectors) selectsListed(h *hca.HCA) bool {
	if !slices.Contains(s.Functions, string(cmp.Or(h.Function, hca.FunctionPhysical))) { // guard: functions
		return false
	}
	return matchesAny(s.Names, h.Name)
}

// selectsPort reports whether the selectors select an HCA, and at least one matching port meets the given condition.
func (s Selectors) selectsPort(h *hca.HCA, condition func(hca.Port) bool) bool {
	if !s.selectsListed(h) || len(s.NUMANodes) > 0 && !slices.Contains(s.NUMANodes, h.NUMANode) {
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

// hcaList lists a node's HCAs for a refusal, as in "mlx5_0 (INIT), mlx5_1 (ACTIVE)".
func hcaList(node *hca.Inventory) string {
	if len(node.HCAs) == 0 {
		return "none"
	}
	return shortList(node.HCAs, withState)
}

// withState returns an HCA's name with the state of a port, or with the HCA's purpose if the purpose is not RDMA.
func withState(h hca.HCA) string {
	if !h.ForPrograms() {
		return fmt.Sprintf("%s (for %s)", h.Name, h.Purpose())
	}
	state := ""
	for _, p := range h.Ports {
		if state != hca.StateActive {
			state = p.State
		}
	}
	return fmt.Sprintf("%s (%s)", h.Name, cmp.Or(state, "unknown"))
}

// mostListed is the maximum number of items that a message lists.
const mostListed = 16

// shortList lists items for a message. If the list is too long, shortList lists the first items and the number of the
// remaining items.
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
