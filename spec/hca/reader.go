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

// All is what people want to know of an HCA that List has listed with its devices.
var All = Parts{Netdevs: true, Rest: true}

// Reader reads the HCAs of a node again and again. What they share is read once for each list. It is safe for
// concurrent use, but for List.
type Reader struct {
	root   string
	places map[string]string // of the last list, by the HCA's name
	listed []HCA
	buses  map[string]int
	text   string // of a copy's device table
	table  map[string]deviceNode
	shared atomic.Pointer[shared]
}

// NewReader makes a reader of the node at root.
func NewReader(root string) *Reader {
	r := &Reader{root: root}
	r.shared.Store(&shared{})
	return r
}

// List returns the node with its rdma_cm and all of its HCAs, of which name, place, PCI address, function, and parent
// are known. It reads one link of each, and a second one of those that it has not listed before. Devices are Unlisted.
// Nobody may change the HCAs: the next list contains the same ones, unless it reports that HCAs have changed.
func (r *Reader) List() (node *Inventory, changed bool, err error) {
	t, err := openTree(r.root)
	if err != nil {
		return nil, false, err
	}
	defer t.close()
	places, err := t.links(classHCA)
	if err != nil {
		return nil, false, fmt.Errorf("list HCAs: %w", err)
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

// relist makes the list of HCAs with these places. What is a part of what at a place stays so as long as an HCA is
// there.
func (r *Reader) relist(t tree, places map[string]string, found *problems) {
	before := make(map[string]HCA, len(r.listed))
	for _, h := range r.listed {
		before[h.Place] = h
	}
	r.places = places
	r.listed = named(places, found)
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
