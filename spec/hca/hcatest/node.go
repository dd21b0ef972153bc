// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Node describes an RDMA node.
type Node struct {
	HCAs []HCA
	// NoRDMACM means that the module rdma_ucm is not loaded.
	NoRDMACM bool
	// PCI are PCI devices that are not HCAs, such as bridges and GPUs.
	PCI []PCI
}

// PCI describes a PCI device.
type PCI struct {
	Address string
	Above   string // the bridges above the device, such as "0000:5d:00.0/0000:5e:00.0"
	Driver  string // "" if the device has no driver
	Files   Files  // the device's attributes
}

// HCA describes one HCA. The HCA with index N, counted from 0, has the verbs device uverbsN. The first 32 verbs devices
// have the device numbers 231:192+N. An HCA with the name hfi1_N also has the Omni-Path device hfi1_N.
type HCA struct {
	Name     string
	NodeType string // as in sysfs; "" means "1: CA"
	PCI      string // the PCI address; "" means a software HCA
	Above    string // the PCI bridges above the HCA, in the form of PCI.Above
	Parent   string // for a VF, the PCI address of the physical function
	SF       string // for a scalable function of the device PCI, mlx5_core.sf.N
	Driver   string // "" if the HCA has no driver
	NUMA     int
	GUID     string // "" means a node GUID that is derived from the index
	Firmware string
	Board    string // the board_id; "" if the HCA has no board_id
	Files    Files  // the attributes of the HCA's PCI device
	NoMAD    bool   // no umad and issm devices, as for EFA
	NoISSM   bool   // no issm devices
	Ports    []Port
}

// Port describes a port.
type Port struct {
	State     string // as in sysfs; "" means "4: ACTIVE"
	PhysState string // as in sysfs; "" means "5: LinkUp"
	LinkLayer string // as in sysfs; "" means "InfiniBand"
	Rate      string // as in sysfs; "" means "100 Gb/sec (4X EDR)"
	// Netdevs are the netdevs below the HCA's device with this port's dev_port. A software HCA is created on the first of
	// these netdevs.
	Netdevs []string
	// Stacked are netdevs that are stacked on the first of Netdevs, in this network namespace.
	Stacked []Netdev
	// Foreign are netdevs in other network namespaces. Only the GID table contains their names.
	Foreign []string
	// RawPackets means that the port's GID table has no entries, as in switchdev mode.
	RawPackets bool
	// Addresses are the IP addresses of the last netdev. Each address has a GID.
	Addresses []string
}

// Netdev is a netdev that is stacked on another netdev.
type Netdev struct {
	Name, Kind string // Kind is bond, vlan, macvlan, or bridge
}

// Down returns the port with its link turned off.
func (p Port) Down() Port {
	p.State = "1: DOWN"
	p.PhysState = "3: Disabled"
	return p
}

// The device numbers of the first devices of each kind. Most of these numbers are fixed in the kernel.
const (
	Major      = 231
	FirstUMAD  = 0
	FirstISSM  = 64
	FirstVerbs = 192
	// MajorMisc and MinorRDMACM are the device number of rdma_cm. The minor number is dynamic.
	MajorMisc = 10
	// MajorHFI1 is the major number of hfi1 devices. This number is dynamic.
	MajorHFI1   = 242
	MinorRDMACM = 58
)

// Files returns the node's files in the kernel's layout.
func (n Node) Files() Files {
	b := builder{functions: map[string]int{}, files: Files{"sys/bus/": "", "sys/class/net/": "", "sys/fs/cgroup/": "",
		"proc/": "", "dev/": ""}}
	b.files["sys/dev/char/1:3"] = Link("../../devices/virtual/mem/null")
	b.files["sys/devices/virtual/mem/null/"] = ""
	for i, h := range n.HCAs {
		b.hca(i, h)
	}
	if len(n.HCAs) > 0 {
		b.files["sys/class/infiniband_verbs/abi_version"] = "6\n"
		b.files["sys/class/infiniband_mad/abi_version"] = "5\n"
	}
	for _, p := range n.PCI {
		b.pci(p)
	}
	if !n.NoRDMACM {
		b.classDevice("misc", "rdma_cm", "sys/devices/virtual", [2]int{MajorMisc, MinorRDMACM}, "0666", nil)
	}
	b.files["device-table.txt"] = strings.Join(b.table, "")
	return b.files
}

type builder struct {
	files Files
	table []string
	mads  int // the number of ports so far, which is the index of the next umad and issm
	// functions contains the number of virtual functions so far, by physical function.
	functions map[string]int
}

// Dir returns the sysfs directory of the HCA with this name and PCI address. If pci is "", the HCA is a software HCA.
func Dir(name, pci string) string { return path.Join(bus(pci), "infiniband", name) }

func bus(pci string) string {
	if pci == "" {
		return "sys/devices/virtual"
	}
	return PCIDir(pci, "")
}

// PCIDir returns the sysfs directory of the PCI device with this address below the given bridges. above has the form of
// PCI.Above.
func PCIDir(address, above string) string {
	way := path.Join(above, address)
	return path.Join("sys/devices/pci"+way[:len("0000:5e")], way)
}

// dir returns the sysfs directory of the device that provides the HCA, relative to the root.
func (h HCA) dir() string {
	if h.PCI == "" {
		return bus("")
	}
	return path.Join(PCIDir(h.PCI, h.Above), h.SF)
}

// pci adds a PCI device.
func (b *builder) pci(p PCI) {
	at := PCIDir(p.Address, p.Above)
	up := strings.Repeat("../", strings.Count(at, "/"))
	b.files["sys/bus/pci/devices/"+p.Address] = Link("../../../" + strings.TrimPrefix(at, "sys/"))
	b.files[at+"/"] = ""
	for name, value := range p.Files {
		b.files[at+"/"+name] = value
	}
	if p.Driver != "" {
		b.files[at+"/driver"] = Link(up + "bus/pci/drivers/" + p.Driver)
		b.files["sys/bus/pci/drivers/"+p.Driver+"/"+p.Address] = Link("../../../../" + strings.TrimPrefix(at, "sys/"))
	}
}

func (b *builder) hca(i int, h HCA) {
	on := h.dir()
	at := path.Join(on, "infiniband", h.Name)
	b.files[path.Join("sys/class/infiniband", h.Name)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	if h.PCI != "" {
		b.files[at+"/device"] = Link("../../../" + path.Base(on))
		p := PCI{Address: h.PCI, Above: h.Above, Files: Files{"numa_node": fmt.Sprintf("%d\n", h.NUMA)}.With(h.Files)}
		if h.SF == "" {
			p.Driver = h.Driver
		} else if h.Driver != "" {
			b.files["sys/bus/auxiliary/drivers/"+h.Driver+"/"] = ""
			b.files[on+"/driver"] = Link(strings.Repeat("../", strings.Count(on, "/")) + "bus/auxiliary/drivers/" + h.Driver)
		}
		b.pci(p)
	}
	if h.Parent != "" {
		b.files[on+"/physfn"] = Link("../" + h.Parent)
		b.files[fmt.Sprintf("%s/virtfn%d", PCIDir(h.Parent, h.Above), b.functions[h.Parent])] = Link("../" + h.PCI)
		b.functions[h.Parent]++
	}
	b.files[at+"/node_type"] = cmp.Or(h.NodeType, "1: CA") + "\n"
	b.files[at+"/node_guid"] = cmp.Or(h.GUID, fmt.Sprintf("b859:9f03:00a9:%04x", 0x5bd0+16*i)) + "\n"
	b.files[at+"/fw_ver"] = h.Firmware + "\n"
	if h.Board != "" {
		b.files[at+"/board_id"] = h.Board + "\n"
	}
	for j, p := range h.Ports {
		b.port(path.Join(at, "ports", strconv.Itoa(j+1)), p)
		for _, netdev := range p.Netdevs {
			b.netdev(on, netdev, j, p)
			p.Stacked = nil
		}
		if h.PCI == "" && len(p.Netdevs) > 0 {
			b.files[at+"/parent"] = p.Netdevs[0] + "\n"
		}
	}
	b.classDevice("infiniband_verbs", fmt.Sprintf("uverbs%d", i), on, number(FirstVerbs, 32, i), "0666",
		Files{"ibdev": h.Name + "\n", "abi_version": "1\n"})
	if unit, ok := strings.CutPrefix(h.Name, "hfi1_"); ok {
		n, _ := strconv.Atoi(unit)
		b.classDevice("hfi1_user", h.Name, "sys/devices/virtual", [2]int{MajorHFI1, n}, "0666", nil)
	}
	if h.NoMAD {
		return
	}
	for j := range h.Ports {
		of := Files{"ibdev": h.Name + "\n", "port": fmt.Sprintf("%d\n", j+1)}
		b.classDevice("infiniband_mad", fmt.Sprintf("umad%d", b.mads), on, number(FirstUMAD, 64, b.mads), "0600", of)
		if !h.NoISSM {
			b.classDevice("infiniband_mad", fmt.Sprintf("issm%d", b.mads), on, number(FirstISSM, 64, b.mads), "0600", of)
		}
		b.mads++
	}
}

// netdev adds a netdev of a device's port, and the netdevs stacked on it. If the port is disabled, the netdev is turned
// off.
func (b *builder) netdev(on, name string, number int, p Port) {
	at := path.Join(on, "net", name)
	b.files[at+"/dev_port"] = fmt.Sprintf("%d\n", number)
	b.files[at+"/flags"] = "0x1003\n"
	b.files[at+"/mtu"] = "4200\n"
	if strings.HasSuffix(p.PhysState, "Disabled") {
		b.files[at+"/flags"] = "0x1002\n"
	}
	b.files[at+"/uevent"] = "INTERFACE=" + name + "\n"
	b.files["sys/class/net/"+name] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	for _, upper := range p.Stacked {
		const virtual = "sys/devices/virtual/net/"
		up := strings.Repeat("../", strings.Count(at, "/")+1)
		b.files[at+"/upper_"+upper.Name] = Link(up + virtual + upper.Name)
		b.files[virtual+upper.Name+"/uevent"] = "DEVTYPE=" + upper.Kind + "\nINTERFACE=" + upper.Name + "\n"
		b.files[virtual+upper.Name+"/lower_"+name] = Link("../../../../../" + at)
		b.files["sys/class/net/"+upper.Name] = Link("../../devices/virtual/net/" + upper.Name)
		if upper.Kind == "bond" {
			b.files[at+"/master"] = Link(up + virtual + upper.Name)
			b.files[at+"/bonding_slave/state"] = "ACTIVE\n"
		}
	}
}

func (b *builder) port(at string, p Port) {
	layer := cmp.Or(p.LinkLayer, "InfiniBand")
	b.files[at+"/state"] = cmp.Or(p.State, "4: ACTIVE") + "\n"
	b.files[at+"/phys_state"] = cmp.Or(p.PhysState, "5: LinkUp") + "\n"
	b.files[at+"/link_layer"] = layer + "\n"
	b.files[at+"/rate"] = cmp.Or(p.Rate, "100 Gb/sec (4X EDR)") + "\n"
	b.files[at+"/lid"] = "0x0\n"
	b.files[at+"/sm_lid"] = "0x0\n"
	if p.RawPackets {
		b.files[at+"/gids/"] = ""
		return
	}
	gid := 0
	add := func(value, kind, netdev string) {
		n := strconv.Itoa(gid)
		b.files[at+"/gids/"+n] = value + "\n"
		b.files[at+"/gid_attrs/types/"+n] = kind
		b.files[at+"/gid_attrs/ndevs/"+n] = netdev
		gid++
	}
	if layer == "InfiniBand" {
		b.files[at+"/lid"] = "0x1a\n"
		b.files[at+"/sm_lid"] = "0x1\n"
		add("fe80:0000:0000:0000:b859:9f03:00a9:5bd0", "IB/RoCE v1\n", "")
	} else {
		netdevs := append(slices.Clone(p.Netdevs), p.Foreign...)
		for i, netdev := range netdevs {
			for _, kind := range []string{"IB/RoCE v1\n", "RoCE v2\n"} {
				add(fmt.Sprintf("fe80:0000:0000:0000:0202:02ff:fe02:%04x", i), kind, netdev+"\n")
			}
		}
		for _, address := range p.Addresses {
			mapped := netip.AddrFrom16(netip.MustParseAddr(address).As16())
			add(mapped.StringExpanded(), "RoCE v2\n", netdevs[len(netdevs)-1]+"\n")
		}
	}
	// The table also has empty entries. On a node, reading the type or netdev of an empty entry returns EINVAL. In a
	// copy, the file is empty.
	add("0000:0000:0000:0000:0000:0000:0000:0000", "", "")
}

// number returns the device number of the device with this index. For each kind, the kernel has a fixed range of
// numbers for the first devices, and a dynamic major number for the other devices.
func number(first, fixed, index int) [2]int {
	if index < fixed {
		return [2]int{Major, first + index}
	}
	return [2]int{500 + first, index - fixed}
}

// classDevice adds a device on a bus, the device's link in its class, and its row in the device table.
func (b *builder) classDevice(class, name, bus string, number [2]int, mode string, attributes Files) {
	major := number[0]
	minor := number[1]
	at := path.Join(bus, class, name)
	b.files[path.Join("sys/class", class, name)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	b.files[at+"/dev"] = fmt.Sprintf("%d:%d\n", major, minor)
	b.files[fmt.Sprintf("sys/dev/char/%d:%d", major, minor)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	for k, v := range attributes {
		b.files[at+"/"+k] = v
	}
	dir := "/dev/infiniband/"
	if class == "hfi1_user" {
		dir = "/dev/"
	}
	b.table = append(b.table, fmt.Sprintf("%s%s c %s 0 0 %d %d\n", dir, name, mode, major, minor))
}
