// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package generate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	devicesNone = "none"
	devicesAll  = "all"
)

// chooseDevices returns the devices of the HCAs that --devices names, and rdma_cm. As in an annotation, "all" means the
// HCAs with an ACTIVE port. The notes name the omitted HCAs. A named HCA that cannot be used is an error.
func chooseDevices(root, choice string) (devices []hca.Device, notes []string, err error) {
	if choice == devicesNone {
		return nil, nil, nil
	}
	node, err := hca.Scan(root)
	if err != nil {
		return nil, nil, err
	}
	var chosen []hca.HCA
	if choice == devicesAll {
		var left []string
		chosen, left = node.Active()
		for _, line := range left {
			notes = append(notes, "warning: "+line)
		}
		if len(chosen) == 0 {
			return nil, nil, errors.New("no HCA on this node can be used: to see the reasons, run 'rdma-spec devices'")
		}
	} else {
		for name := range strings.SplitSeq(choice, ",") {
			h, found := node.Find(name)
			if !found {
				return nil, nil, fmt.Errorf("this node has no HCA %q: to list the HCAs, run 'rdma-spec devices'", name)
			}
			chosen = append(chosen, h)
		}
	}
	for _, h := range chosen {
		usable, err := h.Usable(false)
		if err != nil {
			return nil, nil, fmt.Errorf("HCA %s cannot be used: %w", h.Name, err)
		}
		devices = append(devices, usable...)
	}
	manager, ok, err := node.ConnectionManager(chosen)
	if err != nil {
		notes = append(notes, fmt.Sprintf("warning: %v", err))
	}
	if ok {
		devices = append(devices, manager)
	}
	return devices, notes, nil
}
