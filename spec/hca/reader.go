// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"path"
	"sync/atomic"
)

// Parts are what is read of an HCA, beside the state of its ports.
type Parts struct {
	Devices    bool // its verbs devices, and what else decides whether a container can use it
	Management bool // its umad and issm devices
	Netdevs    bool // those of its ports
	Rest       bool // all but devices, which List has: for people
	Details    bool // see ScanDetails
}

// All is what people want to know of an HCA that List has listed with its devices.
var All = Parts{Netdevs: true, Rest: true}

// Reader reads the HCAs of a node again and again. What they share is read once for each list. It is safe for
// concurrent use, but for List.
type Reader struct {
	root   string
	known  map[string]HCA // the last list, by name
	shared atomic.Pointer[shared]
}

// NewReader makes a reader of the node at root.
func NewReader(root string) *Reader {
	r := &Reader{root: root}
	r.shared.Store(&shared{})
	return r
}

// List returns the node with all of its HCAs, of which only name, place, PCI address, function and parent are known, and
// with its rdma_cm. Of an HCA that it has listed before it reads one link. No HCA has devices: they are Unlisted.
func (r *Reader) List() (*Inventory, error) {
	t, err := openTree(r.root)
	if err != nil {
		return nil, err
	}
	defer t.close()
	var found problems
	node, err := t.named(&found)
	if err != nil {
		return nil, err
	}
	known, buses := make(map[string]HCA, len(node.HCAs)), make(map[string]int, len(node.HCAs))
	for i := range node.HCAs {
		h := &node.HCAs[i]
		if before := r.known[h.Name]; before.Place == h.Place && before.Function != "" {
			*h = before
		} else {
			h.Unlisted = []Kind{KindVerbs, KindHFI1, KindUMAD, KindISSM}
			t.function(h, path.Base(h.Bus()), path.Join(classHCA, h.Bus()))
		}
		known[h.Name] = *h
		buses[h.Bus()]++
	}
	r.known = known
	r.shared.Store(&shared{buses: buses})
	if manager, _ := t.devices(&found, classMisc); len(manager) > 0 {
		node.RDMACM = &manager[0]
	}
	node.Problems = found.all()
	return node, nil
}

// Read reads an HCA of a list, which can take seconds where it is sick. It always returns an HCA: what is broken is in
// its problems.
func (r *Reader) Read(listed HCA, parts Parts) HCA {
	t, err := openTree(r.root)
	if err != nil {
		return HCA{Name: listed.Name, NUMANode: -1, Problems: []string{err.Error()}}
	}
	defer t.close()
	return t.hca(listed, parts, r.shared.Load())
}
