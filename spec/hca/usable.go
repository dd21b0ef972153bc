// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"slices"
)

// Unknown returns nil if the list of devices that a container would get with the HCA is complete. If the list is
// incomplete, Unknown returns an error with the reason. If management is true, the list includes umad and issm devices.
func (h HCA) Unknown(management bool) error {
	switch {
	// guard: unread HCAs
	case h.Unread != "":
		return errors.New(h.Unread)
	// guard: devices that were not listed
	case slices.ContainsFunc(h.Unlisted, func(k Kind) bool { return management || k.Verbs() }):
		return errors.New("the list of the HCA's devices is incomplete")
	}
	return nil
}

// Usable returns the devices that a container gets with the HCA: the verbs device and, for Omni-Path, the hfi1 device.
// If management is true, Usable also returns the usable umad and issm devices. A container that has these management
// devices can disrupt the whole fabric. If containers cannot use the HCA, Usable returns an error with the reason.
func (h HCA) Usable(management bool) ([]Device, error) {
	if err := h.Unknown(management); err != nil {
		return nil, err
	}
	// guard: management HCAs
	if h.Manages != "" {
		return nil, fmt.Errorf("the HCA is only for managing %s, not for use by programs", h.Manages)
	}
	verbs, found := h.Verbs()
	switch {
	case !found:
		return nil, errors.New("the HCA has no verbs device: to load the kernel module, run modprobe ib_uverbs")
	case !verbs.Sound():
		return nil, errors.New(verbs.Problem)
	}
	usable := []Device{verbs}
	for _, d := range h.Devices {
		switch {
		case d.Kind == KindHFI1 && !d.Sound(): // Omni-Path programs open no other device
			return nil, errors.New(d.Problem)
		// guard: management devices
		case d.Kind == KindHFI1, management && d.Sound() && (d.Kind == KindUMAD || d.Kind == KindISSM):
			usable = append(usable, d)
		}
	}
	return usable, nil
}

// Active returns the HCAs that have an ACTIVE port and that programs in containers can use for RDMA. For each other
// HCA, leftOut contains a line with the reason why the HCA is not included.
func (n *Inventory) Active() (usable []HCA, leftOut []string) {
	for _, h := range n.HCAs {
		_, err := h.Usable(false)
		if err == nil && !h.ForPrograms() {
			err = fmt.Errorf("the HCA is for %s: to include it, request it by name", h.Purpose())
		}
		if err == nil && !h.Active() {
			err = errors.New("the HCA has no ACTIVE port: to include it, request it by name")
		}
		if err != nil {
			leftOut = append(leftOut, fmt.Sprintf("HCA %s is left out: %v", h.Name, err))
			continue
		}
		usable = append(usable, h)
	}
	return usable, leftOut
}

// ConnectionManager returns the rdma_cm device for a container that gets these HCAs. If the node has no usable rdma_cm
// device, ok is false. In this case, err is not nil if one of the HCAs uses RDMA_CM. EFA HCAs, for example, do not use
// RDMA_CM.
func (n *Inventory) ConnectionManager(hcas []HCA) (device Device, ok bool, err error) {
	if n.RDMACM != nil && n.RDMACM.Sound() {
		return *n.RDMACM, true, nil
	}
	if slices.ContainsFunc(hcas, HCA.UsesRDMACM) {
		why := "to load the kernel module, run modprobe rdma_ucm"
		if n.RDMACM != nil {
			why = n.RDMACM.Problem
		}
		err = fmt.Errorf("the node has no usable /dev/infiniband/rdma_cm, so RDMA_CM connections will fail: %s", why)
	}
	return Device{}, false, err
}
