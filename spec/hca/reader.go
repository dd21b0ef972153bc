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

// All are the parts to display of an HCA whose devices List has returned.
var All = Parts{Netdevs: true, Rest: true}

// Reader reads a node's HCAs repeatedly. It reads what they have in common once for each List. It is safe for
// concurrent use, except List.
type Reader struct {
	root   string
	places map[string]string // of the last List, by the HCA's name
	listed []HCA
	buses  map[string]int
	text   string // of a copy's device table
	table  map[string]deviceNode
	shared atomic.Pointer[shared]
}

// NewReader returns a Reader for the node at root.
func NewReader(root string) *Reader {
	r := &Reader{root: root}
	r.shared.Store(&shared{})
	return r
}

// List returns the node with its rdma_cm and all of its HCAs, with their name, place, PCI address, function, and
// parent. Their devices are Unlisted. It reads one link of each HCA, and a second one of HCAs that it has not listed
// before. The caller must not modify the HCAs: the next List returns the same ones, unless it reports that they have
// changed. It returns an error if the HCAs cannot be listed.
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

// relist sets the list to the HCAs with these places. It reuses an HCA whose name and place have not changed, since its
// function and parent cannot change either.
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

// Read reads the given parts of a listed HCA, which can take seconds if the HCA is faulty. It always returns an HCA,
// whose Problems say what could not be read.
func (r *Reader) Read(listed HCA, parts Parts) HCA {
	t, err := openTree(r.root)
	if err != nil {
		return HCA{Name: listed.Name, NUMANode: -1, Problems: []string{err.Error()}}
	}
	defer t.close()
	return t.hca(listed, parts, r.shared.Load())
}
