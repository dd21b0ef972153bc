// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Node describes an RDMA node.
type Node struct {
	HCAs []HCA
	// NoRDMACM leaves the module rdma_ucm unloaded.
	NoRDMACM bool
}

// HCA describes one HCA. Its verbs device is uverbsN where N counts the HCAs,
// with the number 231:192+N that the kernel gives to the first 32.
type HCA struct {
	Name     string
	NodeType string // as in sysfs; "" is "1: CA"
	PCI      string // "" makes a soft HCA
	NUMA     int
	GUID     string // "" makes one up from the index
	Firmware string
	NoMAD    bool // without umad and issm, as EFA
	Ports    []Port
}

// Port describes a port.
type Port struct {
	State     string // as in sysfs; "" is "4: ACTIVE"
	PhysState string // "" is "5: LinkUp"
	LinkLayer string // "" is "InfiniBand"
	Rate      string // "" is "100 Gb/sec (4X EDR)"
	// Netdevs are those that the GIDs name, as on Ethernet.
	Netdevs []string
	// IPoIB are netdevs of the PCI function, with this port's dev_port.
	IPoIB []string
}

// Down is a port that is physically off.
func (p Port) Down() Port {
	p.State, p.PhysState = "1: DOWN", "3: Disabled"
	return p
}

// Numbers of the first devices of each kind, fixed in the kernel.
const (
	Major      = 231
	FirstUMAD  = 0
	FirstISSM  = 64
	FirstVerbs = 192
	// MajorMisc and MinorRDMACM are rdma_cm's; the minor is dynamic.
	MajorMisc   = 10
	MinorRDMACM = 58
)

// Files lays the node out as the kernel does.
func (n Node) Files() Files {
	b := builder{files: Files{"sys/class/net/": "", "proc/": "", "dev/": ""}}
	b.files["sys/dev/char/1:3"] = Link("../../devices/virtual/mem/null")
	b.files["sys/devices/virtual/mem/null/"] = ""
	for i, h := range n.HCAs {
		b.hca(i, h)
	}
	if len(n.HCAs) > 0 {
		b.files["sys/class/infiniband_verbs/abi_version"] = "6\n"
		b.files["sys/class/infiniband_mad/abi_version"] = "5\n"
	}
	if !n.NoRDMACM {
		b.classDevice("misc", "rdma_cm", "sys/devices/virtual", MajorMisc, MinorRDMACM, "0666", nil)
	}
	b.files["device-table.txt"] = strings.Join(b.table, "")
	return b.files
}

type builder struct {
	files Files
	table []string
	mads  int // ports seen so far: umad and issm have an index each
}

// Folder is where an HCA with this PCI address has its files.
func Folder(name, pci string) string { return path.Join(bus(pci), "infiniband", name) }

func bus(pci string) string {
	if pci == "" {
		return "sys/devices/virtual"
	}
	return "sys/devices/pci" + pci[:len("0000:5e")] + "/" + pci
}

func (b *builder) hca(i int, h HCA) {
	on, at := bus(h.PCI), Folder(h.Name, h.PCI)
	b.files[path.Join("sys/class/infiniband", h.Name)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	if h.PCI != "" {
		b.files[at+"/device"] = Link("../../../" + h.PCI)
		b.files[on+"/numa_node"] = fmt.Sprintf("%d\n", h.NUMA)
		b.files[on+"/uevent"] = "DRIVER=test\nPCI_CLASS=20700\nPCI_SLOT_NAME=" + h.PCI + "\n"
	}
	b.files[at+"/node_type"] = or(h.NodeType, "1: CA") + "\n"
	b.files[at+"/node_guid"] = or(h.GUID, fmt.Sprintf("b859:9f03:00a9:%04x", 0x5bd0+16*i)) + "\n"
	b.files[at+"/fw_ver"] = h.Firmware + "\n"
	for j, p := range h.Ports {
		b.port(path.Join(at, "ports", strconv.Itoa(j+1)), p)
		for _, netdev := range p.IPoIB {
			b.files[path.Join(on, "net", netdev, "dev_port")] = fmt.Sprintf("%d\n", j)
		}
	}
	b.classDevice("infiniband_verbs", fmt.Sprintf("uverbs%d", i), on, Major, FirstVerbs+i, "0666", Files{"ibdev": h.Name + "\n"})
	if h.NoMAD {
		return
	}
	for j := range h.Ports {
		of := Files{"ibdev": h.Name + "\n", "port": fmt.Sprintf("%d\n", j+1)}
		b.classDevice("infiniband_mad", fmt.Sprintf("umad%d", b.mads), on, Major, FirstUMAD+b.mads, "0600", of)
		b.classDevice("infiniband_mad", fmt.Sprintf("issm%d", b.mads), on, Major, FirstISSM+b.mads, "0600", of)
		b.mads++
	}
}

func (b *builder) port(at string, p Port) {
	b.files[at+"/state"] = or(p.State, "4: ACTIVE") + "\n"
	b.files[at+"/phys_state"] = or(p.PhysState, "5: LinkUp") + "\n"
	b.files[at+"/link_layer"] = or(p.LinkLayer, "InfiniBand") + "\n"
	b.files[at+"/rate"] = or(p.Rate, "100 Gb/sec (4X EDR)") + "\n"
	// A netdev has several GIDs, and the table has empty places. On a node
	// they give EINVAL when read; a copy has an empty file.
	gid := 0
	for _, netdev := range p.Netdevs {
		for range 2 {
			b.files[at+"/gid_attrs/ndevs/"+strconv.Itoa(gid)] = netdev + "\n"
			gid++
		}
	}
	b.files[at+"/gid_attrs/ndevs/"+strconv.Itoa(gid)] = ""
}

// classDevice makes a device on a bus, the link of its class, and its row in
// the table of device nodes.
func (b *builder) classDevice(class, name, bus string, major, minor int, mode string, attributes Files) {
	at := path.Join(bus, class, name)
	b.files[path.Join("sys/class", class, name)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	b.files[at+"/dev"] = fmt.Sprintf("%d:%d\n", major, minor)
	b.files[fmt.Sprintf("sys/dev/char/%d:%d", major, minor)] = Link("../../" + strings.TrimPrefix(at, "sys/"))
	for k, v := range attributes {
		b.files[at+"/"+k] = v
	}
	b.table = append(b.table, fmt.Sprintf("/dev/infiniband/%s c %s 0 0 %d %d\n", name, mode, major, minor))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
