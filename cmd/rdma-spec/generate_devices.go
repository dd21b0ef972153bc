// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	devicesNone = "none"
	devicesAll  = "all"
)

// chooseDevices gives the verbs devices of the HCAs that --devices names, and rdma_cm. As in an annotation, all are those that have an
// ACTIVE port; which ones are left out stands in the notes, whereas a named HCA that cannot be used is an error.
func chooseDevices(root, choice string) (devices []hca.Device, notes []string, err error) {
	if choice == devicesNone {
		return nil, nil, nil
	}
	node, err := hca.Scan(root)
	if err != nil {
		return nil, nil, err
	}
	if choice == devicesAll {
		devices, notes, err = allDevices(node)
	} else {
		devices, err = namedDevices(node, strings.Split(choice, ","))
	}
	if err != nil {
		return nil, nil, err
	}
	if node.RDMACM == nil || !node.RDMACM.Sound() {
		if slices.ContainsFunc(devices, func(d hca.Device) bool { return connectsByRDMACM(node, d.HCA) }) {
			notes = append(notes, "warning: the node has no sound /dev/infiniband/rdma_cm, so connections by RDMA_CM will fail: load the module rdma_ucm")
		}
		return devices, notes, nil
	}
	return append(devices, *node.RDMACM), notes, nil
}

// connectsByRDMACM reports whether programs can use RDMA_CM with an HCA. They cannot with EFA, which has no connection manager
// (drivers/infiniband/hw/efa/efa_verbs.c, efa_get_port_immutable) and is the only kind whose node type is unspecified.
func connectsByRDMACM(node *hca.Node, name string) bool {
	h, found := node.Find(name)
	return found && h.NodeType != "unspecified"
}

func allDevices(node *hca.Node) (devices []hca.Device, notes []string, err error) {
	for _, h := range node.HCAs {
		verbs, err := h.SoundVerbs()
		if err == nil && !h.Active() {
			err = errors.New("it has no ACTIVE port")
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("warning: HCA %s is left out: %v; name it to insist", h.Name, err))
			continue
		}
		devices = append(devices, verbs)
	}
	if len(devices) == 0 {
		return nil, nil, errors.New("no HCA of this node can be used; see 'rdma-spec devices'")
	}
	return devices, notes, nil
}

func namedDevices(node *hca.Node, names []string) (devices []hca.Device, err error) {
	for _, name := range names {
		h, found := node.Find(name)
		if !found {
			return nil, fmt.Errorf("this node has no HCA %q; see 'rdma-spec devices'", name)
		}
		verbs, err := h.SoundVerbs()
		if err != nil {
			return nil, fmt.Errorf("HCA %s cannot be used: %w", name, err)
		}
		if !slices.Contains(devices, verbs) {
			devices = append(devices, verbs)
		}
	}
	return devices, nil
}
