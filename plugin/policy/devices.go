// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// devices returns the devices that are injected: those of the HCAs that are asked for, within those that every
// candidate selects. A container that holds devices of a device plugin gets no others.
func (d *deciding) devices(candidates []*rule) ([]hca.Device, *Refusal) {
	asked := d.request.devices
	unasked := !slices.ContainsFunc(candidates, func(r *rule) bool { return !r.always }) // guard: least-always, else candidates[0].always
	switch {
	case asked.none:
		return nil, nil
	case d.held != nil: // guard: allotment
		return nil, d.notHeld(asked.names)
	case asked.given() && !d.mayAsk() && !unasked: // guard: inject-namespace
		return nil, refuse(CauseNamespace, "the annotation asks for devices, and namespace %s may not have any injected: "+
			"add the namespace to inject.namespaces, or remove devices from the annotation", quoted(d.container.Namespace))
	case !asked.given() && !unasked && (!d.mayAsk() || !d.annotated): // guard: inject-unasked
		return nil, nil
	case d.unknown != nil: // guard: unknown
		return nil, refuse(CauseHCA, devicesUnknown, oneLine(d.unknown.Error()))
	}
	node, refusal := d.inventory()
	if refusal != nil {
		return nil, refusal
	}
	if node.NetNSExclusive && !d.container.HostNetwork { // guard: netns-exclusive
		const why = "the node's RDMA devices belong to network namespaces (netns_mode is exclusive), so an HCA of the " +
			"host's cannot be opened in the container's"
		if unasked && !asked.given() {
			d.warn("no HCAs are injected: %s", why)
			return nil, nil
		}
		return nil, refuse(CauseNoSuchHCA, "the annotation asks for devices, and %s: set hostNetwork: true, have an HCA "+
			"moved into the pod by CNI, or remove devices from the annotation", why)
	}
	chosen, refusal := d.chooseHCAs(node, candidates)
	if refusal != nil || len(chosen) == 0 {
		return nil, refusal
	}
	devices := d.devicesOf(node, chosen, candidates)
	return devices, d.pathTaken(devices)
}

// Injects reports whether the policy may have injected the verbs devices of a container that runs: for Container's
// Injected, where nobody knows.
func (p *Policy) Injects(c Container) bool {
	value, _, annotated := annotation(c.Annotations, c.Name)
	asked, err := parseAnnotation(value)
	if asked.devices.none {
		return false
	}
	return annotated && err == nil && matchesAny(p.config.Inject.Namespaces, c.Namespace) ||
		slices.ContainsFunc(p.rules, func(r rule) bool { return r.always && r.match.namespace(&c) })
}

func (d *deciding) inventory() (*hca.Inventory, *Refusal) {
	node, err := d.facts.HCAs()
	if err != nil {
		return nil, refuse(CauseHCA, "cannot read the HCAs of this node: %s: see rdma-spec devices on the node",
			oneLine(err.Error()))
	}
	return node, nil
}

// notHeld refuses a container that holds verbs devices and asks for an HCA that it does not hold.
func (d *deciding) notHeld(names []string) *Refusal {
	if len(names) == 0 {
		return nil
	}
	node, refusal := d.inventory()
	if refusal != nil {
		return refusal
	}
	for _, name := range names {
		h, _ := node.Find(name)
		if !slices.ContainsFunc(h.Devices, d.holds) { // guard: not-held
			return refuse(CauseCeiling,
				"the annotation asks for HCA %s, and the container holds other verbs devices, to which none is added: "+
					"remove devices from the annotation, or request that HCA from its device plugin", quoted(name))
		}
	}
	return nil
}

// holds reports whether the container holds a device, if it is one by which programs reach the HCA.
func (d *deciding) holds(dev hca.Device) bool {
	return dev.Kind.Verbs() && slices.ContainsFunc(d.container.Devices, func(held Device) bool {
		return isCharacter(held) && held.number() == dev.Number
	})
}

// devicesOf returns the devices of HCAs, and the node's rdma_cm.
func (d *deciding) devicesOf(node *hca.Inventory, chosen []hca.HCA, candidates []*rule) (devices []hca.Device) {
	management := all(candidates, func(s Selectors) bool { return s.Management }) // guard: management, else func([]*rule, func(Selectors) bool) bool { return true }
	devices = make([]hca.Device, 0, len(chosen)+1)
	for _, h := range chosen {
		usable, _ := h.Usable(management) // chosen HCAs are
		devices = append(devices, usable...)
	}
	if management {
		d.warn("rule %q gives the management devices of %s, with which the container can disturb the whole fabric", d.Rule,
			shortList(chosen, nameOf))
	}
	manager, ok, err := node.ConnectionManager(chosen)
	if err != nil {
		d.warn("%s", oneLine(err.Error()))
	}
	if ok {
		devices = append(devices, manager)
	}
	return devices
}

// chooseHCAs returns the HCAs whose devices are injected: one at least, except where the candidates alone leave none.
func (d *deciding) chooseHCAs(node *hca.Inventory, candidates []*rule) (chosen []hca.HCA, refusal *Refusal) {
	names := d.request.devices.names
	if len(names) > 0 {
		chosen, refusal = d.namedHCAs(node, candidates, names)
	} else {
		chosen, refusal = d.allHCAs(node, candidates)
	}
	var physical, down []hca.HCA
	for _, h := range chosen {
		others := func(other hca.HCA) bool { return other.Name != h.Name && other.Parent != "" && other.Parent == h.PCI }
		if slices.ContainsFunc(node.HCAs, others) {
			physical = append(physical, h)
		}
		if !h.Active() {
			down = append(down, h)
		}
	}
	if len(physical) > 0 {
		d.warn("the container gets physical functions whose virtual or scalable ones may belong to other pods: %s",
			shortList(physical, nameOf))
	}
	if len(down) > 0 {
		d.warn("the container gets HCAs that it asks for and that have no ACTIVE port: %s", shortList(down, nameOf))
	}
	return chosen, refusal
}

// allHCAs returns every HCA that all candidates' selectors pass and that has an ACTIVE port.
func (d *deciding) allHCAs(node *hca.Inventory, candidates []*rule) ([]hca.HCA, *Refusal) {
	chosen := make([]hca.HCA, 0, len(node.HCAs))
	var broken []hca.HCA
	for _, h := range node.HCAs {
		switch {
		case h.Unread != "" && all(candidates, func(s Selectors) bool { return matchesAny(s.Names, h.Name) }): // guard: unread
			return nil, refuse(CauseHCA, "HCA %s is one of those that rule %q selects by name, and nothing is known of it: "+
				"%s: name other HCAs in the annotation, or see rdma-spec devices on the node",
				h.Name, d.Rule, oneLine(h.Unread))
		case !all(candidates, func(s Selectors) bool { return s.passes(h, hca.Port.Active) }): // guard: selectors
		case d.problem(node, h) != "": // guard: broken-hca
			broken = append(broken, h)
		default:
			chosen = append(chosen, h)
		}
	}
	left := shortList(broken, func(h hca.HCA) string { return fmt.Sprintf("%s (%s)", h.Name, d.problem(node, h)) })
	switch {
	case len(chosen) == 0 && len(candidates) > 1 && !d.request.devices.given(): // never refused because of a candidate
		return nil, nil
	case len(chosen) == 0 && left != "":
		return nil, refuse(CauseHCA, "no HCA of this node can be injected, left out: %s: see rdma-spec devices on the node",
			left)
	case len(chosen) == 0:
		return nil, refuse(CauseHCA, "no HCA of this node can be injected: rule %q takes those that pass its selectors and "+
			"have an ACTIVE port; "+
			"the node has %s: choose a node with others, or have a port brought up", d.Rule, inventory(node))
	case left != "":
		d.warn("HCAs are left out: %s", left)
	}
	return chosen, nil
}

func (d *deciding) namedHCAs(node *hca.Inventory, candidates []*rule, names []string) ([]hca.HCA, *Refusal) {
	var chosen []hca.HCA
	for _, name := range names {
		h, found := node.Find(name)
		switch {
		case slices.ContainsFunc(chosen, func(other hca.HCA) bool { return other.Name == name }): // guard: hca-twice
			continue
		case !found: // guard: hca-found
			return nil, refuse(CauseNoSuchHCA, "the annotation asks for HCA %s, which this node does not have: it has %s",
				quoted(name), inventory(node))
		case d.problem(node, h) != "": // guard: named-broken-hca
			return nil, refuse(CauseHCA, "the annotation asks for HCA %s, which cannot be injected: %s: ask for another",
				quoted(name), d.problem(node, h))
		case !all(candidates, func(s Selectors) bool { return s.passes(h, anyPort) }): // guard: named-selectors
			return nil, refuse(CauseCeiling, "the annotation asks for HCA %s, which the selectors of %s exclude: ask for "+
				"another, or for devices: all", quoted(name), d.who(candidates))
		}
		chosen = append(chosen, h)
	}
	return chosen, nil
}

// all reports whether a condition holds for the selectors of each candidate.
func all(candidates []*rule, condition func(Selectors) bool) bool {
	return !slices.ContainsFunc(candidates, func(r *rule) bool { return !condition(r.selectors) }) // guard: least-selectors, else condition(candidates[len(candidates)-1].selectors)
}

// pathTaken refuses to hide a device under the path of another: the container would hold another device than it asked
// for.
func (d *deciding) pathTaken(devices []hca.Device) *Refusal {
	for _, granted := range devices {
		for _, present := range d.container.Devices {
			same := isCharacter(present) && present.number() == granted.Number
			if path.Clean(present.Path) == granted.Path && !same { // guard: path-taken
				return refuse(CauseDevicePath,
					"the container has another device at %s (type %s, %d:%d), where %d:%d would be injected: give that one another "+
						"path",
					granted.Path, quoted(present.Type), present.Major, present.Minor, granted.Major, granted.Minor)
			}
		}
	}
	return nil
}

func nameOf(h hca.HCA) string { return h.Name }

// problem returns why an HCA cannot be injected, "" if it can. Where the inventory is older than the last change of the
// node's devices, it asks the kernel, and no HCA, whether the HCA is still there.
func (d *deciding) problem(node *hca.Inventory, h hca.HCA) string {
	usable, err := h.Usable(false)
	if err != nil {
		return oneLine(err.Error())
	}
	if !node.Stale {
		return ""
	}
	_, there, err := d.facts.Verbs(usable[0].Number)
	switch {
	case err != nil: // guard: cannot-tell
		return oneLine(err.Error())
	case !there: // guard: removed
		return "it has just been removed from the node"
	}
	return ""
}
