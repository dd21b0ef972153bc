// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path"
	"slices"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// afterNRI re-examines a container that might have HCAs from NVIDIA's container runtime, with the devices of the
// container's process. If the container is an RDMA container only because of these devices, the plugin did not see
// them, and the container has no grant.
func (s *surveyor) afterNRI(l Listed, r Container, counts bool, inside process.Inside) (Container, bool) {
	if len(inside.HostPaths) > 0 {
		return r, counts // a mount does not allow the container to open devices
	}
	l.Devices = slices.Clip(l.Devices)
	for _, n := range inside.Devices {
		l.Devices = append(l.Devices, policy.Device{Type: "c", Major: int64(n.Major), Minor: int64(n.Minor)})
	}
	again, seen := s.look(l)
	if counts || !seen {
		r.HCAs = again.HCAs
		return r, counts
	}
	again.RDMA = false
	again.Signal = policy.SignalNone
	again.Evidence = ""
	again.Rule = ""
	again.Wanted = nil
	again.State = StateUnseen
	again.Fix = fmt.Sprintf("list the runtime handler %q in optIn.mofedRuntimeHandlers, and recreate the pod",
		l.RuntimeHandler)
	again.Problems = []string{"the plugin did not see the container's HCAs, because NVIDIA's container runtime " +
		"added them (" + policy.MOFEDVariable + "enabled) after the NRI plugins had run"}
	return again, true
}

// hcas finds the HCAs whose verbs devices a container has.
func (s *surveyor) hcas(r *Container, c policy.Container) {
	node, err := s.listed()
	if err != nil {
		s.note(err.Error())
		return
	}
	r.AllDevices = c.AllDevices
	holds := func(verbs hca.Device) bool {
		return slices.ContainsFunc(c.Devices, func(d policy.Device) bool {
			return (d.Type == "c" || d.Type == "u") && d.Major == int64(verbs.Major) && d.Minor == int64(verbs.Minor)
		})
	}
	for _, h := range node.HCAs {
		if verbs, ok := h.Verbs(); ok && (holds(verbs) || r.AllDevices) {
			r.HCAs = append(r.HCAs, h.Name)
		}
	}
	for _, d := range node.Elsewhere {
		if d.Kind.Verbs() && holds(d) {
			r.HCAs = append(r.HCAs, d.HCA)
		}
	}
}

// stale describes a container's verbs devices whose HCA now has a different number, for example because its driver was
// rebound. Libraries look for the number in sysfs.
func (s *surveyor) stale(c policy.Container) (all []string) {
	node, err := s.listed()
	if err != nil || c.AllDevices {
		return nil // hcas notes the error
	}
	for _, d := range c.Devices {
		number := hca.Number{Major: uint32(d.Major), Minor: uint32(d.Minor)} // the kernel's types
		is, known := node.Lookup(number)
		switch {
		case !process.IsVerbs(d.Path) || d.Type != "c" && d.Type != "u":
		case !known:
			all = append(all, fmt.Sprintf("%s has the device number %s, which no longer belongs to an HCA", d.Path, number))
		case path.Base(is.Path) != path.Base(d.Path):
			all = append(all, fmt.Sprintf("%s has the device number %s, which now belongs to %s of HCA %s", d.Path, number,
				path.Base(is.Path), is.HCA))
		}
	}
	return all
}
