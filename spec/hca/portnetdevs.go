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

// maxEmpty is the number of consecutive empty entries in a GID table after which the rest is not read. The kernel
// reserves the first entries in a table for the port's own netdev.
const maxEmpty = 16

// byPort returns the directories of the netdevs by port number for the HCA whose sysfs directory is at. own are the
// directories of the netdevs below its PCI function.
//
// If there are several ports or netdevs, the GID tables determine the port: a netdev belongs to the port whose table
// contains its name at the lowest index. A name is used only if a netdev with that name is below the HCA's own
// function, or below another function of its card that has no HCA, since GID tables also contain pods' netdevs, which
// can have any name. If no table contains a netdev, as for InfiniBand, its attribute dev_port, which counts from 0,
// determines the port, unless the tables assign another netdev to that port.
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

// inTable returns the names of the netdevs in a GID table by index.
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

// ofOtherFunctions returns the directories of the netdevs of the card's other functions that have no HCA, by the
// netdevs' names.
func (n netdevs) ofOtherFunctions(at, pci string) map[string]string {
	found := map[string]string{}
	card, err := n.Follow(path.Join(at, "device"), nil)
	if err != nil {
		return found
	}
	functions, _ := n.list(path.Dir(card)) // a directory that cannot be listed has none
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
