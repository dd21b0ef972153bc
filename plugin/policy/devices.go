// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// devices returns the devices to inject, which are the devices of the requested HCAs that every candidate selects. A
// container that already has verbs devices gets no other devices.
func (d *evaluation) devices(candidates []*rule) ([]hca.Device, *Refusal) {
	asked := d.request.devices
	ruleInjects := !slices.ContainsFunc(candidates, func(r *rule) bool { return !r.always }) // guard: least-always, else candidates[0].always
	switch {
	case asked.none:
		return nil, nil
	case d.held != nil: // guard: allotment
		return nil, d.notHeld(candidates)
	case asked.isPresent() && !d.mayInject() && !ruleInjects: // guard: inject-namespace
		return nil, refuse(CauseNamespace, "the annotation requests devices, "+
			"but the policy does not allow devices to be injected in namespace %s: "+
			"add the namespace to inject.namespaces, or remove the devices key from the annotation",
			quoted(d.container.Namespace))
	case !asked.isPresent() && !ruleInjects && (!d.mayInject() || !d.annotated): // guard: inject-unasked
		return nil, nil
	case d.unknown != nil: // guard: unknown
		return nil, refuse(CauseHCA, devicesUnknown, oneLine(d.unknown.Error()))
	}
	node, stale, refusal := d.inventory(d.facts.HCAs)
	if refusal != nil {
		return nil, refusal
	}
	warned := len(d.Warnings)
	devices, refusal := d.inject(node, candidates, ruleInjects)
	if d.checkPlaces(devices, stale) == nil && (refusal == nil || !stale) {
		return devices, refusal
	}
	d.Warnings = d.Warnings[:warned]
	d.LeftOut = nil
	node, stale, refusal = d.inventory(d.facts.ReadAgain)
	if refusal != nil {
		return nil, refusal
	}
	devices, refusal = d.inject(node, candidates, ruleInjects)
	if why := d.checkPlaces(devices, stale); why != nil { // guard: moved-again
		refusal = refuse(CauseHCA, "%s", oneLine(why.Error()))
	}
	return devices, refusal
}

var errMoved = errors.New("the node's RDMA devices keep changing; the kubelet will retry creating the container")

// checkPlaces returns nil if each device number has the same place in the kernel as in the inventory. checkPlaces asks
// the kernel without waiting for an HCA. The check is necessary because a number might have passed to the device of
// another HCA, even after the inventory was read. If an HCA did not answer, the inventory contains the former state of
// the HCA. Devices of HCAs that share a bus have no place. checkPlaces accepts these devices unless the inventory is
// stale.
func (d *evaluation) checkPlaces(devices []hca.Device, stale bool) error {
	for _, dev := range devices {
		if dev.Place == "" && !stale { // guard: place-unknown, else dev.Place == ""
			continue
		}
		now, _, err := d.facts.Verbs(dev.Number)
		if err == nil && (dev.Place == "" || now.Place != dev.Place) {
			err = errMoved
		}
		if err != nil { // guard: place
			return err
		}
	}
	return nil
}

// inject returns the devices to inject from a node's HCAs, whether or not the annotation requests them.
func (d *evaluation) inject(node *hca.Inventory, candidates []*rule, ruleInjects bool) ([]hca.Device, *Refusal) {
	if node.NetNSExclusive && !d.container.HostNetwork { // guard: netns-exclusive
		const why = "each RDMA device on this node belongs to one network namespace (netns_mode is exclusive), " +
			"so the container cannot use the host's HCAs"
		if ruleInjects && !d.request.devices.isPresent() {
			d.warn("no HCAs are injected: %s", why)
			return nil, nil
		}
		return nil, refuse(CauseNoSuchHCA, "the annotation requests devices, but %s: "+
			"set hostNetwork: true, have a CNI plugin move an HCA into the pod, "+
			"or remove the devices key from the annotation", why)
	}
	chosen, refusal := d.chooseHCAs(node, candidates)
	if refusal != nil || len(chosen) == 0 {
		return nil, refusal
	}
	devices := d.devicesOf(node, chosen, candidates)
	return devices, d.pathTaken(devices)
}

// Injects reports whether the policy might have injected the verbs devices of a running container. Callers that have no
// record of the injected devices set Container.Injected to this result.
func (p *Policy) Injects(c Container) bool {
	value, _, annotated := annotation(c.Annotations, c.Name)
	asked, err := parseAnnotation(value)
	if asked.devices.none {
		return false
	}
	return annotated && err == nil && matchesAny(p.config.Inject.Namespaces, c.Namespace) ||
		slices.ContainsFunc(p.rules, func(r rule) bool { return r.always && r.match.matchesNamespace(&c) })
}

// inventory calls read to read the node's HCAs. If the HCAs cannot be read now, read is nil.
func (d *evaluation) inventory(read func() (*hca.Inventory, bool, error),
) (node *hca.Inventory, stale bool, refusal *Refusal) {
	err := errors.New("the HCAs changed after they were read")
	if read != nil {
		node, stale, err = read()
	}
	if err != nil {
		return nil, false, refuse(CauseHCA, "cannot read this node's HCAs (%s): run rdma-spec devices on the node",
			oneLine(err.Error()))
	}
	return node, stale, nil
}

// devicesOf returns the devices of the chosen HCAs, and the node's rdma_cm device.
func (d *evaluation) devicesOf(node *hca.Inventory, chosen []hca.HCA, candidates []*rule) (devices []hca.Device) {
	management := allGrantManagement(candidates)
	devices = make([]hca.Device, 0, len(chosen)+1)
	for _, h := range chosen {
		usable, _ := h.Usable(management) // chosen HCAs are usable
		devices = append(devices, usable...)
	}
	if management {
		d.warn("rule %q grants the management devices of %s, so the container can disrupt the whole fabric", d.Rule,
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

// pathTaken refuses to inject a device at the path of another device. The injection would replace a device that the
// container requested.
func (d *evaluation) pathTaken(devices []hca.Device) *Refusal {
	for _, granted := range devices {
		for _, present := range d.container.Devices {
			same := isCharacter(present) && present.number() == granted.Number
			if path.Clean(present.Path) == granted.Path && !same { // guard: path-taken
				return refuse(CauseDevicePath,
					"the container has another device at %s (type %s, %d:%d), where device %d:%d would be injected: "+
						"move the container's device to another path",
					granted.Path, quoted(present.Type), present.Major, present.Minor, granted.Major, granted.Minor)
			}
		}
	}
	return nil
}
