// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// notHeld refuses a container that has verbs devices and requests other HCAs. If the annotation requests all HCAs and
// applies to the whole pod, notHeld only warns, because the annotation might be meant for other containers.
func (d *evaluation) notHeld(candidates []*rule) *Refusal {
	asked := d.request.devices
	if !asked.isPresent() || asked.all && d.container.Injected {
		return nil
	}
	node, _, refusal := d.inventory(d.facts.HCAs) // this call also adds the HCAs' names to devices
	switch {
	case refusal == nil:
	case asked.all && !d.own:
		d.warn("the pod's annotation requests all HCAs, " +
			"but the container already has verbs devices, so no devices are injected")
		return nil
	default:
		return refusal
	}
	if !asked.all {
		return d.namesNotHeld(asked.names)
	}
	others := slices.DeleteFunc(slices.Clone(node.HCAs), func(h hca.HCA) bool {
		return d.holdsHCA(h.Name) || !includedInAll(candidates, &h)
	})
	const ignored = "annotation requests all HCAs, " +
		"but the container already has verbs devices, so the devices of %s are not injected: "
	switch {
	case len(others) == 0:
		return nil
	case d.own: // guard: all-not-held
		return refuse(CauseCeiling, "the "+ignored+
			"remove the devices key from the annotation, or request those HCAs from their device plugin",
			shortList(others, nameOf))
	}
	d.warn("the pod's "+ignored+
		"request devices only for the containers that need them, with the annotation "+AnnotationKey+"/container.NAME",
		shortList(others, nameOf))
	return nil
}

// includedInAll reports whether a request for all HCAs includes an HCA, even if the HCA has a fault. An HCA that was
// not read, because the policy does not inject it, counts as active. includedInAll ignores the HCA's devices, because
// they might not have been read.
func includedInAll(candidates []*rule, h *hca.HCA) bool {
	if h.Unread != "" {
		return everyCandidate(candidates, func(s Selectors) bool { return s.selectsListed(h) })
	}
	return h.ForPrograms() &&
		everyCandidate(candidates, func(s Selectors) bool { return s.selectsPort(h, hca.Port.Active) })
}

func (d *evaluation) namesNotHeld(names []string) *Refusal {
	for _, name := range names {
		if !d.holdsHCA(name) { // guard: not-held
			return refuse(CauseCeiling,
				"the annotation requests HCA %s, "+
					"which cannot be injected because the container already has other verbs devices: "+
					"remove the devices key from the annotation, or request that HCA from its device plugin", quoted(name))
		}
	}
	return nil
}

// holdsHCA reports whether the container has a device with which programs use the given HCA.
func (d *evaluation) holdsHCA(name string) bool {
	return slices.ContainsFunc(d.container.Devices, func(held Device) bool {
		if !isCharacter(held) {
			return false
		}
		dev, verbs, err := d.facts.Verbs(held.number())
		return err == nil && verbs && dev.HCA == name
	})
}

// chooseHCAs returns the HCAs whose devices are injected. Without a refusal, the result is empty only if several
// candidates might apply and the annotation requests no devices.
func (d *evaluation) chooseHCAs(node *hca.Inventory, candidates []*rule) (chosen []hca.HCA, refusal *Refusal) {
	names := d.request.devices.names
	if len(names) > 0 {
		chosen, refusal = d.namedHCAs(node, candidates, names)
	} else {
		chosen, refusal = d.allHCAs(node, candidates)
	}
	parents := map[string]bool{}
	for i := range node.HCAs {
		if h := &node.HCAs[i]; h.PCI != h.Parent { // a scalable function has the PCI address of its parent
			parents[h.Parent] = true
		}
	}
	var physical, down []hca.HCA
	for _, h := range chosen {
		if h.PCI != "" && parents[h.PCI] {
			physical = append(physical, h)
		}
		if !h.Active() {
			down = append(down, h)
		}
	}
	if len(physical) > 0 {
		d.warn("the container gets physical functions whose virtual or scalable functions might belong to other pods: %s",
			shortList(physical, nameOf))
	}
	if len(down) > 0 {
		d.warn("the container gets HCAs without an ACTIVE port, because it requests them: %s",
			shortList(down, nameOf))
	}
	return chosen, refusal
}

// allHCAs returns every HCA that is meant for RDMA, has an ACTIVE port, and matches the selectors of all candidates.
func (d *evaluation) allHCAs(node *hca.Inventory, candidates []*rule) ([]hca.HCA, *Refusal) {
	var chosen []hca.HCA
	var broken, left []string
	for i := range node.HCAs {
		h := &node.HCAs[i]
		unknown := h.Unknown(allGrantManagement(candidates))
		switch {
		case unknown != nil && everyCandidate(candidates, func(s Selectors) bool { return s.selectsListed(h) }): // guard: unread
			return nil, refuse(CauseHCA, "HCA %s, which rule %q selects by name, cannot be read (%s): "+
				"request other HCAs in the annotation, or run rdma-spec devices on the node",
				h.Name, d.Rule, oneLine(unknown.Error()))
		case !everyCandidate(candidates, func(s Selectors) bool { return s.selectsPort(h, hca.Port.Active) }): // guard: selectors
			if everyCandidate(candidates, func(s Selectors) bool { return s.selectsPort(h, anyPort) }) {
				left = append(left, withState(*h))
			}
		case problem(h, candidates) != "": // guard: broken-hca
			broken = append(broken, fmt.Sprintf("%s (%s)", h.Name, problem(h, candidates)))
		case !h.ForPrograms():
			left = append(left, withState(*h))
		default:
			chosen = append(chosen, *h)
		}
	}
	d.LeftOut = slices.Concat(broken, left)
	switch {
	// Without a request, a rule that might not apply must not cause a refusal.
	case len(chosen) == 0 && len(candidates) > 1 && !d.request.devices.isPresent():
		return nil, nil
	case len(chosen) == 0 && len(broken) > 0:
		return nil, refuse(CauseHCA, "no HCA on this node can be injected (%s): "+
			"for details, run rdma-spec devices on the node", shortList(broken, itself))
	case len(chosen) == 0:
		return nil, refuse(CauseHCA, "no usable HCA on this node has an ACTIVE port and matches the selectors of rule %q "+
			"(HCAs: %s): choose another node, or bring a port up", d.Rule, hcaList(node))
	case len(broken) > 0:
		d.warn("HCAs are not injected: %s", shortList(broken, itself))
	}
	return chosen, nil
}

func (d *evaluation) namedHCAs(node *hca.Inventory, candidates []*rule, names []string) ([]hca.HCA, *Refusal) {
	var chosen []hca.HCA
	for _, name := range names {
		h, found := node.Find(name)
		switch {
		case slices.ContainsFunc(chosen, func(other hca.HCA) bool { return other.Name == name }): // guard: hca-twice
			continue
		case !found: // guard: hca-found
			return nil, refuse(CauseNoSuchHCA, "the annotation requests HCA %s, which this node does not have: the node has %s",
				quoted(name), hcaList(node))
		case everyCandidate(candidates, func(s Selectors) bool { return s.selectsListed(&h) }) && problem(&h, candidates) != "": // guard: named-broken-hca
			return nil, refuse(CauseHCA, "the annotation requests HCA %s, which cannot be injected (%s): request another HCA",
				quoted(name), problem(&h, candidates))
		case !everyCandidate(candidates, func(s Selectors) bool { return s.selectsPort(&h, anyPort) }): // guard: named-selectors
			return nil, refuse(CauseCeiling, "the annotation requests HCA %s, which the selectors of %s exclude: "+
				"request another HCA, or devices: all", quoted(name), d.ruleNames(candidates))
		}
		chosen = append(chosen, h)
	}
	return chosen, nil
}

// everyCandidate reports whether a condition is true for every candidate's selectors.
func everyCandidate(candidates []*rule, condition func(Selectors) bool) bool {
	return !slices.ContainsFunc(candidates, func(r *rule) bool { return !condition(r.selectors) }) // guard: least-selectors, else condition(candidates[len(candidates)-1].selectors)
}

func nameOf(h hca.HCA) string { return h.Name }

func itself(s string) string { return s }

// allGrantManagement reports whether every candidate grants the management devices.
func allGrantManagement(candidates []*rule) bool {
	return everyCandidate(candidates, func(s Selectors) bool { return s.Management }) // guard: management, else func([]*rule, func(Selectors) bool) bool { return true }
}

// problem returns the reason why an HCA cannot be injected, or "" if the HCA can be injected.
func problem(h *hca.HCA, candidates []*rule) string {
	if _, err := h.Usable(allGrantManagement(candidates)); err != nil {
		return oneLine(err.Error())
	}
	return ""
}
