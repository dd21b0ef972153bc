// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hcatest

import (
	"fmt"
	"slices"
	"testing"
)

const (
	edr = "100 Gb/sec (4X EDR)"
	hdr = "200 Gb/sec (4X HDR)"
	ndr = "400 Gb/sec (4X NDR)"
	sdr = "10 Gb/sec (4X SDR)"
)

// V100Node has two InfiniBand HCAs, whose ports are ACTIVE.
func V100Node() Node {
	return Node{HCAs: []HCA{
		{Name: "mlx5_0", PCI: "0000:5e:00.0", NUMA: 0, Firmware: "16.35.2000",
			Ports: []Port{{Rate: edr, Netdevs: []string{"ib0"}}}},
		{Name: "mlx5_1", PCI: "0000:86:00.0", NUMA: 1, Firmware: "16.35.2000",
			Ports: []Port{{Rate: edr, Netdevs: []string{"ib1"}}}},
	}}
}

// A100Node has an InfiniBand HCA whose port is DOWN, an InfiniBand HCA whose port is ACTIVE, and a RoCE bond.
func A100Node() Node {
	return Node{HCAs: []HCA{
		{Name: "mlx5_0", PCI: "0000:0c:00.0", NUMA: 0, Firmware: "20.36.1010",
			Ports: []Port{Port{Rate: sdr, Netdevs: []string{"ibp12s0"}}.Down()}},
		{Name: "mlx5_1", PCI: "0000:4b:00.0", NUMA: 1, Firmware: "20.36.1010",
			Ports: []Port{{Rate: hdr, Netdevs: []string{"ibp75s0"}}}},
		{Name: "mlx5_bond_0", PCI: "0000:e1:00.0", NUMA: 1, Firmware: "22.36.1010",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: edr, Netdevs: []string{"eth0"}, Stacked: []Netdev{{"bond0", "bond"}}}}},
	}}
}

// EightHCANode has eight HCAs for GPUs (mlx5_0 to mlx5_7) and four HCAs for storage (mlx5_8 to mlx5_11), on two NUMA
// nodes.
func EightHCANode() Node {
	var n Node
	for i := range 12 {
		h := HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x18+8*i),
			NUMA: i / 4 % 2, Firmware: "28.39.2048"}
		if i < 8 {
			h.Ports = []Port{{Rate: ndr, Netdevs: []string{fmt.Sprintf("ib%d", i)}}}
		} else {
			h.NUMA = (i - 8) / 2
			h.Ports = []Port{{LinkLayer: "Ethernet", Rate: hdr, Netdevs: []string{fmt.Sprintf("eth%d", i-8)}}}
		}
		n.HCAs = append(n.HCAs, h)
	}
	return n
}

// SRIOVNode has a physical function, mlx5_0, and three VFs of mlx5_0. No node GUID was set for the VF mlx5_2.
func SRIOVNode() Node {
	n := Node{HCAs: []HCA{{Name: "mlx5_0", PCI: "0000:3b:00.0", Firmware: "20.36.1010",
		Ports: []Port{{Rate: hdr, Netdevs: []string{"ib0"}}}}}}
	for i := 1; i <= 3; i++ {
		h := HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:3b:00.%d", i), Parent: "0000:3b:00.0",
			Firmware: "20.36.1010", Ports: []Port{{Rate: hdr}}}
		if i == 2 {
			h.GUID = "0000:0000:0000:0000"
		}
		n.HCAs = append(n.HCAs, h)
	}
	return n
}

// RenamedNode has HCAs whose names were set by rdma-core's udev rules.
func RenamedNode() Node {
	return Node{HCAs: []HCA{
		{Name: "rocep34s0", PCI: "0000:22:00.0", NUMA: 1, Firmware: "22.36.1010",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: edr, Netdevs: []string{"enp34s0np0"}}}},
		{Name: "ibp12s0", PCI: "0000:0c:00.0", NUMA: 0, Firmware: "20.36.1010",
			Ports: []Port{{Rate: hdr, Netdevs: []string{"ibp12s0"}}}},
	}}
}

// EFANode has two Amazon adapters. One adapter has the name that rdma-core sets. The adapters have no management
// devices, no link layer, and no GUID. The module rdma_ucm is not loaded.
func EFANode() Node {
	efa := HCA{NodeType: "7: unspecified", Driver: "efa", GUID: "0000:0000:0000:0000", Firmware: "0.0.0.0", NoMAD: true,
		Ports: []Port{{LinkLayer: "Unknown", Rate: edr}}}
	first := efa
	second := efa
	first.Name = "efa_0"
	first.PCI = "0000:10:1b.0"
	first.NUMA = 0
	second.Name = "rdmap144s27"
	second.PCI = "0000:90:1b.0"
	second.NUMA = 1
	return Node{HCAs: []HCA{first, second}, NoRDMACM: true}
}

// SoftRoCENode has no RDMA hardware, but three software HCAs. The port of one software HCA is DOWN.
func SoftRoCENode() Node {
	var n Node
	for i, netdev := range []string{"eth0", "d1", "d2"} {
		p := Port{LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)", Netdevs: []string{netdev}}
		if netdev == "d2" {
			p = p.Down()
		}
		n.HCAs = append(n.HCAs, HCA{Name: fmt.Sprintf("rxe%d", i), Ports: []Port{p}})
	}
	return n
}

// RoCENode has two HCAs. A VLAN, a macvlan, and a bridge are stacked on the netdev of the first HCA. The GID table of
// the second HCA contains a macvlan in another network namespace. This macvlan has the same name as the first HCA's
// netdev.
func RoCENode() Node {
	return Node{HCAs: []HCA{
		{Name: "mlx5_0", PCI: "0000:18:00.0", Driver: "mlx5_core", Firmware: "22.36.1010",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: edr,
				Netdevs: []string{"eth0"}, Stacked: []Netdev{{"eth0.100", "vlan"}, {"macvlan0", "macvlan"}, {"br0", "bridge"}}}}},
		{Name: "mlx5_1", PCI: "0000:3b:00.0", Driver: "mlx5_core", Firmware: "22.36.1010",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: edr,
				Netdevs: []string{"eth1"}, Foreign: []string{"eth0"}}}},
	}}
}

// ScalableNode has a physical function and two of its scalable functions.
func ScalableNode() Node {
	n := Node{HCAs: []HCA{{Name: "mlx5_0", PCI: "0000:03:00.0", NUMA: 1, Driver: "mlx5_core", Firmware: "24.36.1010",
		Ports: []Port{{LinkLayer: "Ethernet", Rate: edr, Netdevs: []string{"enp3s0f0np0"}}}}}}
	for i := 2; i <= 3; i++ {
		n.HCAs = append(n.HCAs, HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: "0000:03:00.0",
			SF: fmt.Sprintf("mlx5_core.sf.%d", i), NUMA: 1,
			Driver: "mlx5_core.sf", Firmware: "24.36.1010",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: edr, Netdevs: []string{fmt.Sprintf("enp3s0f0s%d", i)}}}})
	}
	return n
}

// PodAddress is the IP address of a pod's interface in HostDeviceNode, VirtualNode, and ExclusiveFiles.
const PodAddress = "10.244.0.8"

// HostDeviceNode has two HCAs. The CNI plugin host-device has moved the netdev of mlx5_0 to a pod, and renamed the
// netdev to net1.
func HostDeviceNode() Node {
	n := RoCENode()
	n.HCAs[0].Ports = []Port{{LinkLayer: "Ethernet", Rate: edr, Foreign: []string{"net1"}, Addresses: []string{PodAddress}}}
	n.HCAs[1].Ports = []Port{{LinkLayer: "Ethernet", Rate: edr, Netdevs: []string{"eth1"}}}
	return n
}

// VirtualNode has a physical function, mlx5_0, and two VFs of mlx5_0. The SR-IOV CNI plugin has moved the netdev of
// mlx5_1 to a pod, and renamed the netdev to net1. No pod uses mlx5_2.
func VirtualNode() Node {
	n := Many(3)
	n.HCAs[1].Ports = []Port{{LinkLayer: "Ethernet", Rate: hdr, Foreign: []string{"net1"}, Addresses: []string{PodAddress}}}
	n.HCAs[2].Ports[0] = n.HCAs[2].Ports[0].Down()
	return n
}

// ExclusiveFiles returns the files of VirtualNode in exclusive mode. rdma-cni has also moved mlx5_1 to the pod. The
// parameter here contains the HCAs in the network namespace in which the files are visible: mlx5_0 and mlx5_2 for the
// node's namespace.
func ExclusiveFiles(here ...string) Files {
	n := VirtualNode()
	f := n.Files().With(Files{"sys/module/ib_core/parameters/netns_mode": "N\n"})
	for _, h := range n.HCAs {
		if !slices.Contains(here, h.Name) {
			f.Without("sys/class/infiniband/"+h.Name, Dir(h.Name, h.PCI))
		}
	}
	return f
}

// DualPortNode has a ConnectX-3, which has an InfiniBand port and a RoCE port on one PCI function.
func DualPortNode() Node {
	return Node{HCAs: []HCA{{Name: "mlx4_0", PCI: "0000:5e:00.0", Driver: "mlx4_core",
		Firmware: "2.42.5000", Ports: []Port{
			{Rate: "56 Gb/sec (4X FDR)", Netdevs: []string{"ib0"}},
			{LinkLayer: "Ethernet", Rate: "40 Gb/sec (4X QDR)", Netdevs: []string{"eth0"},
				Stacked: []Netdev{{"eth0.7", "vlan"}}},
		}}}}
}

// OmniPathNode has two Omni-Path HCAs.
func OmniPathNode() Node {
	return Node{HCAs: []HCA{
		{Name: "hfi1_0", PCI: "0000:5e:00.0", Driver: "hfi1", Firmware: "1.27.0",
			Ports: []Port{{Rate: edr, Netdevs: []string{"ib0"}}}},
		{Name: "hfi1_1", PCI: "0000:86:00.0", Driver: "hfi1", NUMA: 1, Firmware: "1.27.0",
			Ports: []Port{{Rate: edr, Netdevs: []string{"ib1"}}}},
	}}
}

// IWARPFiles returns the files of a node with an iWARP card and a Soft-iWARP HCA. A VLAN is stacked on the netdev of
// the Soft-iWARP HCA. The Soft-iWARP HCA lacks the attribute parent, and the GID tables contain no netdevs.
func IWARPFiles() Files {
	f := Node{HCAs: []HCA{
		{Name: "irdma0", NodeType: "4: RNIC", PCI: "0000:b1:00.0", Driver: "ice", Firmware: "1.75", NoMAD: true,
			Ports: []Port{{LinkLayer: "Ethernet", Netdevs: []string{"ens1f0"}}}},
		{Name: "siw0", NodeType: "4: RNIC", GUID: "a236:9fff:fe2b:0c1d", NoMAD: true,
			Ports: []Port{{LinkLayer: "Ethernet", Netdevs: []string{"eno1"}, Stacked: []Netdev{{"eno1.5", "vlan"}}}}},
	}}.Files()
	const virtual = "sys/devices/virtual/"
	for _, netdev := range []string{"eno1", "eno1.5"} {
		f[virtual+"net/"+netdev+"/address"] = "a0:36:9f:2b:0c:1d\n"
	}
	for _, p := range []string{Dir("irdma0", "0000:b1:00.0"), Dir("siw0", "")} {
		f.Without(p+"/ports/1/gid_attrs/ndevs", p+"/parent")
	}
	return f
}

// GB300Node has two HCAs of a GB300. Their PCI domains differ, and they have no issm devices.
func GB300Node() Node {
	var n Node
	for i := range 2 {
		n.HCAs = append(n.HCAs, HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("%04x:03:00.0", i),
			NUMA: i, Driver: "mlx5_core",
			Firmware: "40.45.1020", NoISSM: true, Ports: []Port{{Rate: "800 Gb/sec (4X XDR)",
				Netdevs: []string{fmt.Sprintf("ibp3s%d", i)}}}})
	}
	return n
}

// Many returns a node with n HCAs: a physical function and its VFs.
func Many(n int) Node {
	pci := func(i int) string { return fmt.Sprintf("0000:%02x:%02x.%d", i/256, i/8%32, i%8) }
	var node Node
	for i := range n {
		h := HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: pci(i), Parent: pci(0), Driver: "mlx5_core", Firmware: "28.39.2048",
			Ports: []Port{{LinkLayer: "Ethernet", Rate: hdr, Netdevs: []string{fmt.Sprintf("eth%d", i)}}}}
		if i == 0 {
			h.Parent = ""
		}
		node.HCAs = append(node.HCAs, h)
	}
	return node
}

// VirtualFunctions returns the files of a node with the given numbers of physical functions, VFs for each physical
// function, and pods' netdevs on the host. The netdevs of the VFs are in pods.
func VirtualFunctions(physical, virtual, netdevs int) Files {
	var n Node
	for p := range physical {
		pci := fmt.Sprintf("0000:%02x:00.0", 0x10+p)
		n.HCAs = append(n.HCAs, HCA{Name: fmt.Sprintf("mlx5_%d", len(n.HCAs)), PCI: pci, Driver: "mlx5_core",
			Ports: []Port{{LinkLayer: "Ethernet", Netdevs: []string{fmt.Sprintf("ens%dnp0", p)}}}})
		for v := range virtual {
			n.HCAs = append(n.HCAs, HCA{Name: fmt.Sprintf("mlx5_%d", len(n.HCAs)), Parent: pci, Driver: "mlx5_core",
				PCI:  fmt.Sprintf("0000:%02x:%02x.%d", 0x10+p, 1+v/8, v%8),
				GUID: fmt.Sprintf("0a%02x:00ff:fe00:%04x", p, v), Ports: []Port{{LinkLayer: "Ethernet"}}})
		}
	}
	f := n.Files()
	for i := range netdevs {
		name := fmt.Sprintf("veth%d", i)
		f["sys/devices/virtual/net/"+name+"/address"] = fmt.Sprintf("ee:ee:ee:ee:%02x:%02x\n", i/256, i%256)
		f["sys/class/net/"+name] = Link("../../devices/virtual/net/" + name)
	}
	return f
}

// The roots of the named nodes, each in a temporary directory of the test. The function with the same name and the
// suffix Node describes the node.
var (
	V100     = rootOf(V100Node)
	A100     = rootOf(A100Node)
	EightHCA = rootOf(EightHCANode)
	SRIOV    = rootOf(SRIOVNode)
	Renamed  = rootOf(RenamedNode)
	EFA      = rootOf(EFANode)
	SoftRoCE = rootOf(SoftRoCENode)
	RoCE     = rootOf(RoCENode)
	Scalable = rootOf(ScalableNode)
	DualPort = rootOf(DualPortNode)
	OmniPath = rootOf(OmniPathNode)
	GB300    = rootOf(GB300Node)
	// NoRDMA has sysfs, but no RDMA hardware. NoRDMACM is V100 without the module rdma_ucm.
	NoRDMA   = rootOf(func() Node { return Node{NoRDMACM: true} })
	NoRDMACM = rootOf(func() Node { return Node{NoRDMACM: true, HCAs: V100Node().HCAs} })
)

func rootOf(node func() Node) func(testing.TB) string {
	return func(t testing.TB) string { t.Helper(); return node().Files().Root(t) }
}

// IWARP writes IWARPFiles to a temporary directory of the test, and returns the directory.
func IWARP(t testing.TB) string { return IWARPFiles().Root(t) }

// All contains the named nodes, for tests that use all of them.
var All = map[string]func(testing.TB) string{
	"V100": V100, "A100": A100, "EightHCA": EightHCA, "SRIOV": SRIOV, "Renamed": Renamed, "EFA": EFA,
	"SoftRoCE": SoftRoCE, "NoRDMA": NoRDMA, "NoRDMACM": NoRDMACM, "Broken": Broken,
	"RoCE": RoCE, "Scalable": Scalable, "DualPort": DualPort, "OmniPath": OmniPath, "IWARP": IWARP, "GB300": GB300,
}
