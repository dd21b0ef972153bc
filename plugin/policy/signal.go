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
	c := d.container
	d.held = d.heldVerbs()
	switch {
	case d.annotated && d.namespaceListed():
		d.Signal, d.Evidence = SignalAnnotation, AnnotationKey
	case d.config.OptIn.Devices && len(d.held) > 0:
		d.Signal, d.Evidence = SignalDevice, fmt.Sprintf("%s (%s)", d.held[0].Path, d.held[0].HCA)
	case c.MOFEDInjected && matchesAny(d.config.OptIn.NVIDIAMOFED.RuntimeHandlers, c.RuntimeHandler):
		d.Signal, d.Evidence = SignalEnvironment, "NVIDIA_MOFED=enabled"
	case d.request.optOut:
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

// heldVerbs gives the verbs devices of this node that the container holds, by number: a path proves nothing.
// For a container that may use every device of the host they are no sign of anything.
func (d *deciding) heldVerbs() []hca.Device {
	c := d.container
	if c.AllDevices || !slices.ContainsFunc(c.Devices, isCharacter) {
		return nil
	}
	verbs, err := d.node.Verbs()
	if err != nil {
		d.Warnings = append(d.Warnings, fmt.Sprintf("cannot tell whether the container holds verbs devices: %v", err))
	}
	var held []hca.Device
	for _, dev := range c.Devices {
		if !isCharacter(dev) {
			continue
		}
		if v, ok := verbs[dev.number()]; ok {
			held = append(held, v)
		}
	}
	return held
}

func isCharacter(d Device) bool {
	const max = int64(^uint32(0))
	return (d.Type == "c" || d.Type == "u") && d.Major >= 0 && d.Minor >= 0 && d.Major <= max && d.Minor <= max
}

func (d Device) number() hca.Number {
	return hca.Number{Major: uint32(d.Major), Minor: uint32(d.Minor)}
}

// findResource asks the kubelet, if a resource could make the container an RDMA container.
func (d *deciding) findResource() *Refusal {
	globs := slices.Clone(d.config.OptIn.Resources)
	for _, r := range d.rules {
		if !r.deny && r.match.matchesPod(d.container) {
			globs = append(globs, r.match.Resources...)
		}
	}
	if len(globs) == 0 {
		return nil
	}
	names, err := d.resources()
	if err != nil {
		refusal := kubeletRefusal(err)
		d.Warnings = append(d.Warnings, refusal.Message)
		return refusal
	}
	for _, name := range names {
		if matchesAny(globs, name) {
			d.Signal, d.Evidence = SignalResource, name
			return nil
		}
	}
	return nil
}

// findRule gives the first rule that matches. The kubelet is asked where all but a rule's resources matches.
func (d *deciding) findRule() (rule, *Refusal) {
	for _, r := range d.rules {
		if !r.match.matchesPod(d.container) {
			continue
		}
		if len(r.match.Resources) == 0 {
			return r, nil
		}
		names, err := d.resources()
		if err != nil {
			return rule{}, kubeletRefusal(err)
		}
		if slices.ContainsFunc(names, func(name string) bool { return matchesAny(r.match.Resources, name) }) {
			return r, nil
		}
	}
	return d.otherwise, nil
}

// matchesPod says whether all but the resources matches.
func (m Match) matchesPod(c Container) bool {
	for key, value := range m.Labels {
		if got, ok := c.Labels[key]; !ok || got != value {
			return false
		}
	}
	return matchesAnyOrAll(m.Namespaces, c.Namespace) && matchesAnyOrAll(m.RuntimeHandlers, c.RuntimeHandler)
}

func kubeletRefusal(err error) *Refusal {
	return refuse(CauseKubelet, "the kubelet did not tell which resources the container holds: %v", err)
}
