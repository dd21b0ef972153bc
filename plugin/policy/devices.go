// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// devices gives the devices that are injected: those asked for, within those that the rule selects; where nothing is said, all of
// them into a container that holds none yet.
func (d *deciding) devices(r *rule) ([]hca.Device, *Refusal) {
	asked := d.request.devices
	mayInject := d.namespaceListed() || r.inject
	switch {
	case asked.none:
		return nil, nil
	case asked.given() && !mayInject: // guard: inject-namespace
		return nil, refuse(CauseNamespace, "the annotation asks for devices, and namespace %s may not have any injected: "+
			"add the namespace to optIn.annotation.namespaces, or remove devices from the annotation", quoted(d.container.Namespace))
	case !asked.given() && (len(d.held) > 0 || !r.inject && d.Signal != SignalAnnotation): // guard: inject-unasked
		return nil, nil
	}
	node, err := d.node.HCAs()
	if err != nil {
		return nil, refuse(CauseHCA, "cannot read the HCAs of this node: %s: see rdma-spec devices on the node", oneLine(err.Error()))
	}
	chosen, refusal := d.chooseHCAs(node, r)
	if refusal != nil {
		return nil, refusal
	}
	var devices, management []hca.Device
	for _, h := range chosen {
		for _, dev := range h.Devices {
			switch {
			case dev.Problem != "": // guard: device-problem
			case dev.Kind == hca.KindVerbs:
				devices = append(devices, dev)
			case !r.devices.Management: // guard: management
			default:
				devices, management = append(devices, dev), append(management, dev)
			}
		}
	}
	devices = append(devices, d.connectionManager(node, chosen)...)
	if len(management) > 0 {
		d.warn("rule %q gives management devices, with which the container can disturb the whole fabric: %s", r.name,
			shortList(management, func(dev hca.Device) string { return path.Base(dev.Path) }))
	}
	return devices, d.pathTaken(devices)
}

// connectionManager gives the node's rdma_cm, if there is a sound one.
func (d *deciding) connectionManager(node *hca.Node, chosen []hca.HCA) []hca.Device {
	switch {
	case node.RDMACM != nil && node.RDMACM.Problem == "": // guard: rdma-cm-problem, else node.RDMACM != nil
		return []hca.Device{*node.RDMACM}
	case node.RDMACM != nil:
		d.warn("connections by RDMA_CM will fail, since the container gets no rdma_cm: %s", oneLine(node.RDMACM.Problem))
	case slices.ContainsFunc(chosen, usesConnectionManager):
		d.warn("connections by RDMA_CM will fail, since the node has no /dev/infiniband/rdma_cm: load the module rdma_ucm")
	}
	return nil
}

// usesConnectionManager tells HCAs from such as EFA, which sysfs calls unspecified and which know no RDMA_CM.
func usesConnectionManager(h hca.HCA) bool { return h.NodeType != "unspecified" }

// chooseHCAs gives the HCAs whose devices are injected, one at least.
func (d *deciding) chooseHCAs(node *hca.Node, r *rule) ([]hca.HCA, *Refusal) {
	if names := d.request.devices.names; len(names) > 0 {
		return namedHCAs(node, r, names)
	}
	var chosen, broken []hca.HCA
	for _, h := range node.HCAs {
		switch {
		case !r.devices.passes(h, hca.Port.Active): // guard: selectors
		case verbsProblem(h) != "": // guard: broken-hca
			broken = append(broken, h)
		default:
			chosen = append(chosen, h)
		}
	}
	left := ""
	if len(broken) > 0 {
		left = "left out: " + shortList(broken, func(h hca.HCA) string { return fmt.Sprintf("%s (%s)", h.Name, verbsProblem(h)) })
	}
	switch {
	case len(chosen) == 0 && left != "":
		return nil, refuse(CauseHCA, "no HCA of this node can be injected, %s: see rdma-spec devices on the node", left)
	case len(chosen) == 0:
		return nil, refuse(CauseHCA, "no HCA of this node can be injected: rule %q takes those that pass its devices selectors and have an ACTIVE port; "+
			"the node has %s: choose a node with others, or have a port brought up", r.name, inventory(node))
	case left != "":
		d.warn("HCAs are %s", left)
	}
	return chosen, nil
}

func namedHCAs(node *hca.Node, r *rule, names []string) ([]hca.HCA, *Refusal) {
	var chosen []hca.HCA
	for _, name := range names {
		h, found := node.Find(name)
		switch {
		case slices.ContainsFunc(chosen, func(other hca.HCA) bool { return other.Name == name }): // guard: hca-twice
			continue
		case !found: // guard: hca-found
			return nil, refuse(CauseHCA, "the annotation asks for HCA %s, which this node does not have: it has %s", quoted(name), inventory(node))
		case !r.devices.passes(h, anyPort): // guard: named-selectors
			return nil, refuse(CauseCeiling, "the annotation asks for HCA %s, which the devices selectors of rule %q do not pass: ask for another, or for devices: all", quoted(name), r.name)
		case verbsProblem(h) != "": // guard: named-broken-hca
			return nil, refuse(CauseHCA, "the annotation asks for HCA %s, which cannot be injected: %s: ask for another", quoted(name), verbsProblem(h))
		}
		chosen = append(chosen, h)
	}
	return chosen, nil
}

// pathTaken refuses to hide a device under the path of another: the container would hold something else than it was promised.
func (d *deciding) pathTaken(devices []hca.Device) *Refusal {
	for _, granted := range devices {
		for _, present := range d.container.Devices {
			same := isCharacter(present) && present.number() == granted.Number
			if path.Clean(present.Path) == granted.Path && !same { // guard: path-taken
				return refuse(CauseDevicePath, "the container has another device at %s (type %s, %d:%d), where %d:%d would be injected: give that one another path",
					granted.Path, quoted(present.Type), present.Major, present.Minor, granted.Major, granted.Minor)
			}
		}
	}
	return nil
}

// verbsProblem says why an HCA's verbs device cannot be injected, "" where it can.
func verbsProblem(h hca.HCA) string {
	if _, err := h.SoundVerbs(); err != nil {
		return oneLine(err.Error())
	}
	return ""
}

func (d *deciding) warn(format string, args ...any) {
	d.Warnings = append(d.Warnings, fmt.Sprintf(format, args...))
}
