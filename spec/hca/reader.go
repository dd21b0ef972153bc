// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"fmt"
	"maps"
	"path"
	"sync/atomic"
)

// All selects all parts to display of an HCA whose devices List has returned.
var All = Parts{Netdevs: true, Rest: true}

// Reader reads a node's HCAs repeatedly. Each call of List reads the data that all HCAs share. Read is safe for
// concurrent use, but List is not.
type Reader struct {
	root   string
	places map[string]string // from the last List, by the HCA's name
	listed []HCA
	buses  map[string]int
	text   string // the text of a copy's DeviceTable
	table  map[string]deviceNode
	shared atomic.Pointer[shared]
}

// NewReader returns a Reader for the node at root.
func NewReader(root string) *Reader {
	r := &Reader{root: root}
	r.shared.Store(&shared{})
	return r
}

// List returns the node's rdma_cm device and all of its HCAs. In each HCA, only the name, place, PCI address, function,
// and parent are set, and Unlisted contains all kinds. List reads one link for each HCA, and a second link for each HCA
// that was not in the previous list. changed is false if List returns the same HCAs as the previous List. The caller
// must not modify the HCAs, because the next List can return them again. List returns an error if the root cannot be
// opened, or if the HCAs cannot be listed.
func (r *Reader) List() (node *Inventory, changed bool, err error) {
	t, err := openTree(r.root)
	if err != nil {
		return nil, false, err
	}
	defer t.close()
	places, err := t.links(classHCA)
	if err != nil {
		return nil, false, fmt.Errorf("cannot list HCAs: %w", err)
	}
	var found problems
	changed = r.listed == nil || !maps.Equal(places, r.places)
	if changed {
		r.relist(t, places, &found)
	}
	if text := readDeviceTable(t, &found); text != r.text {
		r.text = text
		r.table = parseDeviceTable(text, &found)
	}
	r.shared.Store(&shared{buses: r.buses, table: r.table})
	node = &Inventory{HCAs: r.listed, NetNSExclusive: t.exclusive()}
	if manager, _ := t.devices(r.table, &found, classMisc); len(manager) > 0 {
		node.RDMACM = &manager[0]
		node.RDMACM.Place, _ = t.Readlink(path.Join(classMisc, path.Base(node.RDMACM.Path)))
	}
	node.Problems = found.all()
	return node, changed, nil
}

// relist sets r.listed to the HCAs with these places. It reuses an HCA whose name and place have not changed, because
// the HCA's function and parent cannot have changed either.
func (r *Reader) relist(t tree, places map[string]string, found *problems) {
	before := make(map[string]HCA, len(r.listed))
	for _, h := range r.listed {
		before[h.Place] = h
	}
	r.places = places
	r.listed = hcasAt(places, found)
	r.buses = make(map[string]int, len(places))
	for i := range r.listed {
		h := &r.listed[i]
		h.Unlisted = []Kind{KindVerbs, KindHFI1, KindUMAD, KindISSM}
		if same, ok := before[h.Place]; ok && same.Name == h.Name {
			*h = same
		} else {
			t.function(h, path.Base(h.Bus()), path.Join(classHCA, h.Bus()))
		}
		r.buses[h.Bus()]++
	}
}

// Read reads the given parts of an HCA that List has returned. Read can take seconds if the HCA is faulty. Read always
// returns an HCA. The Problems of this HCA describe the parts that could not be read.
func (r *Reader) Read(listed HCA, parts Parts) HCA {
	t, err := openTree(r.root)
	if err != nil {
		return HCA{Name: listed.Name, NUMANode: -1, Problems: []string{err.Error()}}
	}
	defer t.close()
	return t.hca(listed, parts, r.shared.Load())
}
