// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package policy

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// LiveFacts returns facts whose functions read the RDMA devices below a root directory. The root directory of the node
// itself is "/".
func LiveFacts(root string) Facts {
	list := sync.OnceValues(func() (*hca.Inventory, error) { return hca.List(root) })
	known := sync.OnceValue(func() *hca.Inventory { return knownAt(root, list) })
	return Facts{
		Verbs: func(n hca.Number) (hca.Device, bool, error) {
			verbs, ok, err := hca.VerbsByNumber(root, n)
			if ok {
				if node, err := list(); err == nil {
					named, _ := node.Lookup(n)
					verbs.HCA = named.HCA
				}
			}
			return verbs, ok, err
		},
		HCAs:   ReadNow(func() (*hca.Inventory, error) { return hca.Scan(root) }),
		Known:  known,
		Memory: LiveMemory(),
	}
}

// knownAt returns the HCAs below a root directory with their addresses and devices, or nil if the HCAs cannot be
// listed. knownAt does not query the HCAs.
func knownAt(root string, list func() (*hca.Inventory, error)) *hca.Inventory {
	node, _, err := hca.NewReader(root).List()
	if err != nil {
		return nil
	}
	withDevices, err := list()
	if err != nil {
		return node
	}
	for i := range node.HCAs {
		if h, found := withDevices.Find(node.HCAs[i].Name); found {
			node.HCAs[i].Devices = h.Devices
		}
	}
	return node
}

// LiveMemory returns the size of the node's memory (MemTotal) in bytes, or 0 if the size is unknown.
func LiveMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
