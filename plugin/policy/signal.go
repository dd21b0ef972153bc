// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// findSignal sets why the container counts as an RDMA container. The kubelet is asked last, and only where its word could matter;
// the refusal says that it was asked and did not tell.
func (d *deciding) findSignal() *Refusal {
	c := &d.container
	d.held = d.heldVerbs()
	switch {
	case d.annotated && d.namespaceListed(): // guard: annotation-namespace, else d.annotated
		d.Signal, d.Evidence = SignalAnnotation, AnnotationKey
	case d.config.OptIn.Devices && len(d.held) > 0:
		d.Signal, d.Evidence = SignalDevice, fmt.Sprintf("%s (%s)", d.held[0].Path, d.held[0].HCA)
	case c.MOFEDInjected && matchesAny(d.config.OptIn.NVIDIAMOFED.RuntimeHandlers, c.RuntimeHandler): // guard: mofed-handler, else c.MOFEDInjected
		d.Signal, d.Evidence = SignalEnvironment, "NVIDIA_MOFED=enabled"
	case d.request.optOut && !d.deniable():
		return nil
	default:
		return d.findResource()
	}
	return nil
}

// namespaceListed says whether an annotation counts in the container's namespace.
func (d *deciding) namespaceListed() bool {
	return matchesAny(d.config.OptIn.Annotation.Namespaces, d.container.Namespace)
}

// deniable says whether some rule could deny: then opting out does not keep a container from being looked at.
func (d *deciding) deniable() bool {
	for i := range d.rules {
		if d.rules[i].deny && d.rules[i].match.matchesPod(&d.container) { // guard: opt-out-denied
			return true
		}
	}
	return false
}

// heldVerbs gives the verbs devices of this node that the container holds, by number: a path proves nothing.
// For a container that may use every device of the host they are no sign of anything.
func (d *deciding) heldVerbs() []hca.Device {
	c := &d.container
	if c.AllDevices || !slices.ContainsFunc(c.Devices, isCharacter) { // guard: privileged
		return nil
	}
	var held []hca.Device
	for _, dev := range c.Devices {
		if !isCharacter(dev) { // guard: character-device
			continue
		}
		v, ok, err := d.node.Verbs(dev.number())
		if err != nil && d.blind == nil {
			d.blind = err
			d.warn(blind, oneLine(err.Error()))
		}
		if ok { // guard: verbs-number, else true
			held = append(held, v)
		}
	}
	return held
}

// isCharacter says that a device is a character device with a number that fits the kernel's: larger ones would wrap around.
func isCharacter(d Device) bool {
	const most = int64(^uint32(0))
	if d.Major < 0 || d.Minor < 0 || d.Major > most || d.Minor > most { // guard: device-number
		return false
	}
	return d.Type == "c" || d.Type == "u"
}

func (d Device) number() hca.Number {
	return hca.Number{Major: uint32(d.Major), Minor: uint32(d.Minor)}
}

// findResource asks the kubelet, if a resource could make the container an RDMA container.
func (d *deciding) findResource() *Refusal {
	globs := slices.Clone(d.config.OptIn.Resources)
	for i := range d.rules {
		if match := &d.rules[i].match; match.matchesPod(&d.container) {
			globs = append(globs, match.Resources...)
		}
	}
	if len(globs) == 0 {
		return nil
	}
	names, refusal := d.resources()
	for _, name := range names {
		if matchesAny(globs, name) {
			d.Signal, d.Evidence = SignalResource, name
			return nil
		}
	}
	return refusal
}

// findRule gives the first rule that matches. The kubelet is asked where all but a rule's resources matches.
func (d *deciding) findRule() (*rule, *Refusal) {
	for i := range d.rules {
		r := &d.rules[i]
		if !r.match.matchesPod(&d.container) {
			continue
		}
		if len(r.match.Resources) == 0 {
			return r, nil
		}
		names, refusal := d.resources()
		if refusal != nil { // guard: kubelet-ceiling
			return nil, refusal
		}
		if slices.ContainsFunc(names, func(name string) bool { return matchesAny(r.match.Resources, name) }) {
			return r, nil
		}
	}
	return &d.otherwise, nil
}

// matchesPod says whether all but the resources matches.
func (m *Match) matchesPod(c *Container) bool {
	for key, value := range m.Labels {
		if got, ok := c.Labels[key]; !ok || got != value { // guard: rule-labels
			return false
		}
	}
	if !matchesAnyOrAll(m.Namespaces, c.Namespace) { // guard: rule-namespaces
		return false
	}
	return matchesAnyOrAll(m.RuntimeHandlers, c.RuntimeHandler)
}
