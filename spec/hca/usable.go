// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"fmt"
	"slices"
)

// Unknown returns an error if it is unknown which of the HCA's devices a container would get, and says why; nil if they
// are known.
func (h HCA) Unknown(management bool) error {
	switch {
	// guard: unread HCAs
	case h.Unread != "":
		return errors.New(h.Unread)
	// guard: devices that were not listed
	case slices.ContainsFunc(h.Unlisted, func(k Kind) bool { return management || k.Verbs() }):
		return errors.New("its device list is incomplete")
	}
	return nil
}

// Usable returns the HCA's devices that a container gets: its verbs device, and hfi1 for Omni-Path. With management,
// the container also gets the usable umad and issm devices, with which it can disrupt the whole fabric. An error means
// that a container cannot use the HCA, and says why.
func (h HCA) Usable(management bool) ([]Device, error) {
	if err := h.Unknown(management); err != nil {
		return nil, err
	}
	// guard: management HCAs
	if h.Manages != "" {
		return nil, fmt.Errorf("it is for managing %s, not for use by programs", h.Manages)
	}
	verbs, found := h.Verbs()
	switch {
	case !found:
		return nil, errors.New("it has no verbs device: to load the kernel module, run modprobe ib_uverbs")
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

// Active returns the HCAs that a container can use and that have an ACTIVE port. For each other HCA, leftOut contains a
// line that says why it is not included.
func (n *Inventory) Active() (usable []HCA, leftOut []string) {
	for _, h := range n.HCAs {
		_, err := h.Usable(false)
		if err == nil && !h.ForPrograms() {
			err = fmt.Errorf("it is for %s: to include it, request it by name", h.Purpose())
		}
		if err == nil && !h.Active() {
			err = errors.New("it has no ACTIVE port: to include it, request it by name")
		}
		if err != nil {
			leftOut = append(leftOut, fmt.Sprintf("HCA %s is left out: %v", h.Name, err))
			continue
		}
		usable = append(usable, h)
	}
	return usable, leftOut
}

// ConnectionManager returns the rdma_cm device for a container that gets these HCAs; ok is false if the node has no
// usable one. It then returns an error if one of the HCAs uses RDMA_CM, which EFA does not.
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
