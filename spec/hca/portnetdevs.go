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

// maxEmpty limits the number of consecutive empty entries that are read from a GID table. Later entries are not read,
// because the kernel reserves the first entries in a table for the port's own netdev.
const maxEmpty = 16

// byPort returns the directories of an HCA's netdevs by port number. The parameter at is the HCA's sysfs directory, and
// own contains the directories of the netdevs below the HCA's PCI function.
//
// If the HCA has several ports or netdevs, the GID tables determine the port of each netdev. A netdev belongs to the
// port whose table contains the netdev's name at the lowest index. GID tables also contain the netdevs of pods, which
// can have any name. byPort therefore ignores a name unless a netdev with the name is below the HCA's own function, or
// below another function of the same card that has no HCA. If no table contains a netdev, as for InfiniBand, the
// netdev's attribute dev_port determines the port. The values of dev_port start at 0. byPort ignores dev_port if the
// tables assign another netdev to the same port.
func (n netdevs) byPort(at string, h *HCA, own []string) map[int][]string {
	if len(h.Ports) == 1 && len(own) <= 1 {
		return map[int][]string{h.Ports[0].Number: own}
	}
	candidates := map[string]string{}
	if len(h.Ports) > 1 && h.PCI != "" {
		candidates = n.ofOtherFunctions(at, h.PCI)
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

// inTable returns the names of the netdevs in a GID table, by index.
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

// ofOtherFunctions finds the card's other functions that have no HCA, and returns the directories of their netdevs by
// name.
func (n netdevs) ofOtherFunctions(at, pci string) map[string]string {
	found := map[string]string{}
	card, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil {
		return found
	}
	functions, _ := n.list(path.Dir(card)) // if the directory cannot be listed, no function is found
	for _, function := range functions {
		other := path.Join(path.Dir(card), function)
		if function == pci || !strings.HasPrefix(function, pci[:len(pci)-1]) {
			continue
		}
		if _, err := n.Stat(path.Join(other, "infiniband")); err == nil {
			continue
		}
		for _, dir := range n.inDirectory(path.Join(other, "net")) {
			found[path.Base(dir)] = dir
		}
	}
	return found
}
