// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// devices gives the devices that are injected: those asked for, within those that the rule selects; where nothing is said, all of
// them into a container that holds none yet.
func (d *deciding) devices(r rule) ([]hca.Device, *Refusal) {
	asked := d.request.devices
	mayInject := d.namespaceListed() || r.inject
	switch {
	case asked.none:
		return nil, nil
	case asked.given() && !mayInject:
		return nil, refuse(CauseNamespace, "the annotation asks for devices, and namespace %s may not have any injected: "+
			"add the namespace to optIn.annotation.namespaces, or remove devices from the annotation", quoted(d.container.Namespace))
	case !asked.given() && (len(d.held) > 0 || !r.inject && d.Signal != SignalAnnotation):
		return nil, nil
	}
	node, err := d.node.Scan()
	if err != nil {
		return nil, refuse(CauseHCA, "cannot read the HCAs of this node: %v", err)
	}
	chosen, refusal := d.chooseHCAs(node, r)
	if refusal != nil {
		return nil, refusal
	}
	var devices []hca.Device
	for _, h := range chosen {
		devices = append(devices, d.devicesOf(h, r)...)
	}
	if node.RDMACM != nil && node.RDMACM.Problem == "" {
		devices = append(devices, *node.RDMACM)
	} else {
		d.Warnings = append(d.Warnings, "the node has no /dev/infiniband/rdma_cm, so connections by RDMA_CM will fail: load the module rdma_ucm")
	}
	return devices, d.pathTaken(devices)
}

// chooseHCAs gives the HCAs whose devices are injected, one at least.
func (d *deciding) chooseHCAs(node *hca.Node, r rule) ([]hca.HCA, *Refusal) {
	if names := d.request.devices.names; len(names) > 0 {
		return namedHCAs(node, r, names)
	}
	var chosen []hca.HCA
	for _, h := range node.HCAs {
		if !r.devices.passes(h, hca.Port.Active) {
			continue
		}
		if problem := verbsProblem(h); problem != "" {
			d.Warnings = append(d.Warnings, fmt.Sprintf("HCA %s is left out: %s", h.Name, problem))
			continue
		}
		chosen = append(chosen, h)
	}
	if len(chosen) == 0 {
		return nil, refuse(CauseHCA, "no HCA of this node can be injected: rule %q takes those that pass its devices selectors and have an ACTIVE port; "+
			"the node has %s", r.name, inventory(node))
	}
	return chosen, nil
}

func namedHCAs(node *hca.Node, r rule, names []string) ([]hca.HCA, *Refusal) {
	var chosen []hca.HCA
	for _, name := range names {
		h, found := node.Find(name)
		switch {
		case slices.ContainsFunc(chosen, func(other hca.HCA) bool { return other.Name == name }):
			continue
		case !found:
			return nil, refuse(CauseHCA, "the annotation asks for HCA %s, which this node does not have: it has %s", quoted(name), inventory(node))
		case !r.devices.passes(h, anyPort):
			return nil, refuse(CauseCeiling, "the annotation asks for HCA %s, which the devices selectors of rule %q do not pass: ask for another, or for devices: all", quoted(name), r.name)
		case verbsProblem(h) != "":
			return nil, refuse(CauseHCA, "the annotation asks for HCA %s, which cannot be injected: %s", quoted(name), verbsProblem(h))
		}
		chosen = append(chosen, h)
	}
	return chosen, nil
}

// devicesOf gives the devices of an HCA that may leave the node: the verbs device, and umad and issm only where a rule says so.
func (d *deciding) devicesOf(h hca.HCA, r rule) []hca.Device {
	var devices []hca.Device
	for _, dev := range h.Devices {
		switch {
		case dev.Problem != "":
		case dev.Kind == hca.KindVerbs:
			devices = append(devices, dev)
		case r.devices.Management && (dev.Kind == hca.KindUMAD || dev.Kind == hca.KindISSM):
			devices = append(devices, dev)
			d.Warnings = append(d.Warnings, fmt.Sprintf("rule %q gives the management device %s, with which the container can disturb the whole fabric", r.name, dev.Path))
		}
	}
	return devices
}

// pathTaken refuses to hide a device under the path of another: the container would hold something else than it was promised.
func (d *deciding) pathTaken(devices []hca.Device) *Refusal {
	for _, granted := range devices {
		for _, present := range d.container.Devices {
			same := isCharacter(present) && present.number() == granted.Number
			if present.Path == granted.Path && !same {
				return refuse(CauseDevicePath, "the container has another device at %s (type %s, %d:%d), where %d:%d would be injected: give that one another path",
					granted.Path, quoted(present.Type), present.Major, present.Minor, granted.Major, granted.Minor)
			}
		}
	}
	return nil
}

// passes says whether the selectors let an HCA through, with one of its ports that also meets a condition.
func (s Devices) passes(h hca.HCA, condition func(hca.Port) bool) bool {
	if !matchesAny(s.Names, h.Name) || len(s.NUMANodes) > 0 && !slices.Contains(s.NUMANodes, h.NUMANode) {
		return false
	}
	return slices.ContainsFunc(h.Ports, func(p hca.Port) bool {
		linkLayer := len(s.LinkLayers) == 0 || slices.Contains(s.LinkLayers, p.LinkLayer)
		netdev := len(s.Netdevs) == 0 || slices.ContainsFunc(p.Netdevs, func(n string) bool { return matchesAny(s.Netdevs, n) })
		return linkLayer && netdev && condition(p)
	})
}

func anyPort(hca.Port) bool { return true }

// verbsProblem says why an HCA's verbs device cannot be injected, "" where it can.
func verbsProblem(h hca.HCA) string {
	verbs, ok := h.Verbs()
	if !ok {
		return "it has no verbs device: load the module ib_uverbs"
	}
	return verbs.Problem
}

// inventory lists a node's HCAs for a refusal: "mlx5_0 (DOWN), mlx5_1 (ACTIVE)".
func inventory(node *hca.Node) string {
	const most = 16
	var names []string
	for i, h := range node.HCAs {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(node.HCAs)-most))
			break
		}
		state := "DOWN"
		if h.Active() {
			state = "ACTIVE"
		}
		names = append(names, fmt.Sprintf("%s (%s)", h.Name, state))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
