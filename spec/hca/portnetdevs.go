// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package hca

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxEmpty is how many empty places of a GID table in a row end the look at it. The kernel keeps the first places of a
// table for the port's own netdev.
const maxEmpty = 16

// byPort returns the directories of the netdevs of each port of an HCA at the path at. own are those below its PCI
// function.
//
// Where that leaves a choice, the GID tables tell it: which port names a netdev first has it. A name counts only if
// such a netdev is below the HCA's own function, or below another function of its card that has no HCA: GID tables name
// netdevs of pods too, which have any names. What no table names, as with InfiniBand, is told by dev_port, which counts
// from 0: it is the only netdev of that port then, or on top of it.
func (n netdevs) byPort(at string, h *HCA, own []string) map[int][]string {
	if len(h.Ports) == 1 && len(own) <= 1 {
		return map[int][]string{h.Ports[0].Number: own}
	}
	candidates := map[string]string{}
	if len(h.Ports) > 1 && h.PCI != "" {
		candidates = n.beside(at, h.PCI)
	}
	for _, dir := range own {
		candidates[path.Base(dir)] = dir
	}
	port := map[string]int{}
	place := map[string]int{}
	for _, p := range h.Ports {
		for i, name := range n.inTable(fmt.Sprintf("%s/ports/%d/gid_attrs/ndevs", at, p.Number)) {
			if before, told := place[name]; candidates[name] != "" && (!told || i < before) {
				port[name] = p.Number
				place[name] = i
			}
		}
	}
	named := slices.Collect(maps.Values(port))
	for _, dir := range own {
		number := 1
		if len(h.Ports) > 1 {
			number, _ = strconv.Atoi(n.attribute(path.Join(dir, "dev_port")))
			number++
		}
		if _, told := port[path.Base(dir)]; !told && !slices.Contains(named, number) {
			port[path.Base(dir)] = number
		}
	}
	of := map[int][]string{}
	for name, number := range port {
		of[number] = append(of[number], candidates[name])
	}
	return of
}

// inTable returns the netdevs that a GID table names, each by its first place.
func (n netdevs) inTable(dir string) map[int]string {
	names := map[int]string{}
	for i, empty := 0, 0; i < maxEntries && empty < maxEmpty; i++ {
		if name := n.attribute(path.Join(dir, strconv.Itoa(i))); name != "" {
			names[i] = name
			empty = 0
			continue
		}
		empty++
	}
	return names
}

// beside returns the netdevs of the other functions of a card that have no HCA, by name.
func (n netdevs) beside(at, pci string) map[string]string {
	found := map[string]string{}
	card, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil {
		return found
	}
	functions, _ := n.list(path.Dir(card)) // what cannot be listed has none
	for _, function := range functions {
		other := path.Join(path.Dir(card), function)
		if function == pci || !strings.HasPrefix(function, pci[:len(pci)-1]) {
			continue
		}
		if _, err := n.Stat(path.Join(other, "infiniband")); err == nil {
			continue
		}
		for _, dir := range n.of(path.Join(other, "net")) {
			found[path.Base(dir)] = dir
		}
	}
	return found
}
