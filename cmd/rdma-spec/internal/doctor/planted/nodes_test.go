// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Ports that are not ACTIVE: without a cable, or turned off by the netdev's driver.
var (
	polling  = hcatest.Port{State: "1: DOWN", PhysState: "2: Polling", Rate: "10 Gb/sec (4X SDR)"}
	disabled = hcatest.Port{State: "1: DOWN", PhysState: "3: Disabled", LinkLayer: "Ethernet", Rate: "40 Gb/sec (4X QDR)"}
)

// rails are HCAs of one board, mlx5_FIRST and on, each with such a port, and a netdev if it is one of Ethernet.
func rails(board string, first, count int, p hcatest.Port) (all []hcatest.HCA) {
	for i := first; i < first+count; i++ {
		own := p
		if p.LinkLayer == "Ethernet" {
			own.Netdevs = []string{fmt.Sprintf("eth%d", i)}
		}
		all = append(all, hcatest.HCA{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+8*i),
			Driver: "mlx5_core", Firmware: "28.39.2048", Board: board, Ports: []hcatest.Port{own}})
	}
	return all
}

func ib(rate string) hcatest.Port  { return hcatest.Port{Rate: rate} }
func eth(rate string) hcatest.Port { return hcatest.Port{LinkLayer: "Ethernet", Rate: rate} }

const (
	ndr, hdr, edr = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)"
	ocp, connectX = "MT_0000000838", "MT_0000000834"
)

// with sets a field of each HCA.
func with(all []hcatest.HCA, set func(i int, h *hcatest.HCA)) []hcatest.HCA {
	for i := range all {
		set(i, &all[i])
	}
	return all
}

// gpusOf are GPUs that NVIDIA's driver has.
func gpusOf(count int) (all []hcatest.PCI) {
	for i := range count {
		all = append(all, hcatest.PCI{Address: fmt.Sprintf("0000:%02x:00.0", 0x13+8*i), Driver: "nvidia",
			Files: hcatest.Files{"class": "0x030200\n", "vendor": "0x10de\n", "numa_node": "0\n"}})
	}
	return all
}

// models are what the GPU driver says of gpusOf.
func models(count int, model string) hcatest.Files {
	files := hcatest.Files{}
	for i := range count {
		files[fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", 0x13+8*i)] = "Model: \t\t " + model + "\n"
	}
	return files
}

// driver is the GPU driver, by its words.
func driver(words string) hcatest.Files {
	return hcatest.Files{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX " + words + "\n",
		"proc/sys/kernel/osrelease": "5.15.0-1042-nvidia\n"}
}

const open580, closed535 = "Open Kernel Module for x86_64  580.65.06  Release Build", "x86_64 Kernel Module  535.183.01"

// logged is the kernel's log a day after the start, with lines of so many seconds ago: "60 mlx5_core …".
func logged(lines ...string) hcatest.Files {
	const now = 90000
	var all []string
	for _, line := range lines {
		ago, text := 0, ""
		_, _ = fmt.Sscan(line, &ago)
		_, text, _ = strings.Cut(line, " ")
		all = append(all, fmt.Sprintf(`{"at": %d, "text": %q}`, now-ago, text))
	}
	return hcatest.Files{node.AnswersDir + "/kernel-log.json": fmt.Sprintf(`{"answer": {"now": %d, "lines": [%s]}}`, now,
		strings.Join(all, ", "))}
}

// known is a node that somebody has published something of.
type known struct {
	name string
	// source has what makes the case: the states, layers, rates and boards of ports, the files. It says what is filled in:
	// values that no public source has.
	source string
	node   hcatest.Node
	with   hcatest.Files
}

func nodeOf(hcas ...[]hcatest.HCA) hcatest.Node { return hcatest.Node{HCAs: slices.Concat(hcas...)} }

func vfs(parent hcatest.HCA, count int, p hcatest.Port) []hcatest.HCA {
	parent.Ports = []hcatest.Port{parent.Ports[0]}
	all := []hcatest.HCA{parent}
	for i := 1; i <= count; i++ {
		all = append(all, hcatest.HCA{Name: fmt.Sprintf("mlx5_%d", 10+i), PCI: fmt.Sprintf("0000:10:%02x.%d", i/8, i%8),
			Parent: parent.PCI, Driver: "mlx5_core", Firmware: parent.Firmware, Ports: []hcatest.Port{p}})
	}
	return all
}

// healthyNodes are nodes that work. Some have fooled other tools, or earlier versions of this one.
var healthyNodes = slices.Concat(kinds, []known{
	{"DGX H100, InfiniBand, storage not cabled", "https://github.com/deepseek-ai/DeepEP/issues/38: board, firmware, PORT_DOWN " +
		"on InfiniBand with sm_lid 0 beside ACTIVE ports; the rest is filled in",
		hcatest.Node{HCAs: slices.Concat(rails(ocp, 0, 8, ib(ndr)), rails(connectX, 8, 2, polling)), PCI: gpusOf(8)}, driver(open580)},
	{"DGX B200, Ethernet, half of each storage card not cabled", "https://github.com/imbue-ai/cluster-health/issues/4: dual-" +
		"port cards, one port (Up), one (Down), beside 8 rails of ConnectX-7; that these are of Ethernet, and the rest, is filled in",
		hcatest.Node{HCAs: slices.Concat(rails(ocp, 0, 8, eth(ndr)), rails(connectX, 8, 1, eth(hdr)), rails(connectX, 9, 1, disabled),
			rails(connectX, 10, 1, eth(hdr)), rails(connectX, 11, 1, disabled)), PCI: gpusOf(8)}, driver(open580)},
	{"H100 on InfiniBand, with two dual-port cards for Ethernet", "https://github.com/imbue-ai/cluster-health/issues/4: eight " +
		"ConnectX-7 of InfiniBand whose netdevs, ibp26s0 to ibp220s0, are (Down), without IPoIB; mlx5_1 and mlx5_7 (Up), mlx5_2 " +
		"and mlx5_8 (Down), of ConnectX-6 on Ethernet; the names of the rails, and the boards, are filled in",
		hcatest.Node{HCAs: slices.Concat(with(rails(ocp, 9, 8, ib(ndr)), ipoib), rails(connectX, 1, 1, eth(edr)), rails(connectX, 2, 1, disabled), rails(connectX, 7, 1, eth(edr)),
			rails(connectX, 8, 1, disabled)), PCI: gpusOf(8)}, driver(open580).With(route("eth1")).With(turnedOff(9, 8))},
	{"OCI BM.GPU.H100.8, the second port of the front end not provisioned",
		"https://github.com/NVIDIA/NVSentinel/issues/1361: phys_state Disabled, no address, no routes; " +
			"https://github.com/NVIDIA/NVSentinel/pull/1462; the rest is filled in",
		hcatest.Node{HCAs: slices.Concat(rails(ocp, 0, 8, eth(hdr)), rails(connectX, 8, 1, eth(edr)), rails(connectX, 9, 1, disabled)),
			PCI: gpusOf(8)}, driver(open580).With(route("eth8"))},
	{"8 rails of 400G and 2 storage ports of 200G with one PSID", "https://github.com/NVIDIA/NVSentinel/issues/1379: expected " +
		"by the homogeneity of cards; the rates are filled in",
		nodeOf(rails(ocp, 0, 8, eth(ndr)), rails(ocp, 8, 2, eth(hdr))), nil},
	{"DGX Spark", "https://github.com/geerlingguy/sbc-reviews/issues/92: four functions, two Active at 200, two Down and " +
		"Disabled at 40, on Ethernet; the board is filled in",
		nodeOf(rails("NVD0000000087", 0, 1, eth(hdr)), rails("NVD0000000087", 1, 1, disabled),
			rails("NVD0000000087", 2, 1, eth(hdr)), rails("NVD0000000087", 3, 1, disabled)),
		hcatest.Files{"proc/meminfo": "MemTotal: 127535304 kB\nMemAvailable: 118000000 kB\nCmaTotal: 32768 kB\nCmaFree: 30000 kB\n"}},
	{b200NVSwitches, "https://github.com/siderolabs/extensions/pull/717, /issues/893: four " +
		"limited functions of ConnectX-7 with SMDL=SW_MNG in their vpd, mlx5_8 to mlx5_11; the rest is filled in",
		nodeOf(rails(ocp, 0, 8, ib(ndr)), with(rails(ocp, 8, 4, ib(edr)), func(_ int, h *hcatest.HCA) {
			h.Files = hcatest.Files{"device": "0x1021\n", "vpd": "\x82\x10\x00NVSwitch bridge\x90\x0f\x00VU\x0cSMDL=SW_MNG\x78"}
			h.Firmware = "28.43.1000"
		})), nil},
	{"virtual machine of Azure, virtual functions alone", "https://github.com/Azure/azhpc-diagnostics/issues/59: mlx5_an0 on " +
		"Ethernet, ACTIVE at 40 Gb/s, beside mlx5_ib0 to mlx5_ib7 at 200, MT4124, firmware 20.28.4000, GUIDs of 00155dfffe; " +
		"their ACTIVE is filled in",
		nodeOf(with(rails("MT_0000000010", 0, 8, ib(hdr)), func(i int, h *hcatest.HCA) {
			h.Name, h.GUID, h.Firmware = fmt.Sprintf("mlx5_ib%d", i), fmt.Sprintf("0015:5dff:fe34:07%02x", 0x2b+i), "20.28.4000"
		}), with(rails("", 8, 1, eth("40 Gb/sec (4X QDR)")), func(_ int, h *hcatest.HCA) { h.Name = "mlx5_an0" })), nil},
	{"EC2 with EFA", "https://github.com/torvalds/linux drivers/infiniband/hw/efa/efa_verbs.c: node type unspecified, no GUID; the rest is filled in",
		hcatest.EFANode(), nil},
	{efaReachesGPUs, "https://github.com/amzn/amzn-drivers kernel/linux/efa/src/efa_sysfs.c: p2p names the way to the memory " +
		"of GPUs; the node, whose GPU driver is the closed one, is filled in",
		hcatest.Node{HCAs: hcatest.EFANode().HCAs, NoRDMACM: true, PCI: gpusOf(4)}, driver(closed535).With(hcatest.Files{
			"sys/devices/pci0000:10/0000:10:1b.0/p2p": "NVIDIA\n", "sys/devices/pci0000:90/0000:90:1b.0/gdr": "1\n"})},
	{"E810, one of two ports without a cable", "https://github.com/torvalds/linux drivers/infiniband/hw/irdma/verbs.c, " +
		"irdma_query_port: DOWN and Disabled without a carrier; the rest is filled in",
		nodeOf(with(rails("", 0, 1, eth(edr)), intel), with(rails("", 1, 1, disabled), intel)), nil},
	{"X722 in iWARP mode, without an address", "https://github.com/torvalds/linux drivers/infiniband/core/device.c, " +
		"iw_query_port: INIT with a carrier and no IPv4 address; the rest is filled in",
		nodeOf(with(rails("", 0, 1, hcatest.Port{State: "2: INIT", PhysState: "4: PortConfigurationTraining",
			LinkLayer: "Ethernet", Rate: "10 Gb/sec (4X SDR)"}), intel)),
		hcatest.Files{"sys/devices/pci0000:10/0000:10:00.0/net/eth0/carrier_up_count": "1\n"}},
	{"BCM57508, one of two ports without a cable", "https://github.com/torvalds/linux drivers/infiniband/hw/bnxt_re/" +
		"ib_verbs.c, bnxt_re_query_port: DOWN and Disabled without a carrier; the rest is filled in",
		nodeOf(with(rails("", 0, 1, eth(edr)), broadcom), with(rails("", 1, 1, disabled), broadcom)), nil},
	{"eight Pollara 400, two of them without a cable", "https://github.com/torvalds/linux " +
		"drivers/infiniband/hw/ionic/ionic_ibdev.c, ionic_query_port: the state of the carrier; the rest is filled in",
		nodeOf(with(rails("", 0, 6, eth(ndr)), pensando), with(rails("", 6, 2, disabled), pensando)), nil},
	{"ConnectX-3, InfiniBand and an Ethernet port without a cable", "https://github.com/torvalds/linux drivers/net/ethernet/" +
		"mellanox/mlx4/main.c: mlx4_pci_table; drivers/infiniband/hw/mlx4/main.c, eth_link_query_port; the rest is filled in",
		hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx4_0", PCI: "0000:5e:00.0", Driver: "mlx4_core", Firmware: "2.42.5000",
			Files: hcatest.Files{"vendor": "0x15b3\n", "device": "0x1003\n", "class": "0x028000\n"},
			Ports: []hcatest.Port{{Rate: "56 Gb/sec (4X FDR)", Netdevs: []string{"ib0"}},
				{State: "1: DOWN", PhysState: "3: Disabled", LinkLayer: "Ethernet", Netdevs: []string{"eth0"}}}}}},
		upAll("sys/devices/pci0000:5e/0000:5e:00.0/net/eth0")},
	{"ConnectX-4 Lx as a network card", "https://github.com/MicrosoftDocs/azure-docs/issues/45303: ConnectX-4 Lx (15b3:1016) " +
		"as the network card of a machine that has no use of RDMA; the second port and the lack of rdma_ucm are filled in",
		hcatest.Node{NoRDMACM: true, HCAs: slices.Concat(rails("MT_2420110034", 0, 1, eth("25 Gb/sec (1X EDR)")),
			rails("MT_2420110034", 1, 1, disabled))}, upAll("sys/devices/pci0000:18/0000:18:00.0/net/eth1").With(kubernetes)},
	{"ConnectX-4 Lx as a network card beside a T4", "https://github.com/MicrosoftDocs/azure-docs/issues/45303, as before; the " +
		"T4 with its closed driver, and its IOMMU, are filled in",
		hcatest.Node{NoRDMACM: true, HCAs: rails("MT_2420110034", 0, 2, eth("25 Gb/sec (1X EDR)")), PCI: gpusOf(1)},
		driver(closed535).With(kubernetes).With(hcatest.Files{"sys/devices/pci0000:10/0000:10:00.0/iommu_group/type": "DMA-FQ\n",
			"sys/devices/pci0000:13/0000:13:00.0/iommu_group/type": "DMA-FQ\n"})},
	{"Ethernet card whose mlx5_ib is not installed", "https://github.com/torvalds/linux drivers/net/ethernet/mellanox/mlx5/" +
		"core/dev.c: mlx5_core.rdma.N is there without its driver; the rest is filled in", hcatest.Node{NoRDMACM: true},
		card("0000:b5:00.0", "0x15b3", "0x1015", "0x020000", "mlx5_core").With(hcatest.Files{
			"sys/bus/auxiliary/devices/mlx5_core.rdma.0":             hcatest.Link("../../../devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0"),
			"sys/devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0/x": ""})},
	{"two functions of a card, one of them in switchdev mode", "https://github.com/torvalds/linux drivers/infiniband/hw/" +
		"mlx5/main.c, raw_eth_profile: packets alone, neither umad nor a place for GIDs; the rest is filled in",
		nodeOf(with(rails("MT_0000000359", 0, 1, hcatest.Port{LinkLayer: "Ethernet", Rate: edr, RawPackets: true}),
			func(_ int, h *hcatest.HCA) { h.NoMAD = true }), rails("MT_0000000359", 1, 1, eth(edr))), nil},
	{"BlueField in DPU mode, one of two ports without a cable", "https://github.com/torvalds/linux net/openvswitch/" +
		"vport-netdev.c: the master of a bridge's port is ovs-system; that p1 is in one from the factory, and the rest, is filled in",
		nodeOf(rails("MT_0000000884", 0, 1, eth(edr)), rails("MT_0000000884", 1, 1, disabled)),
		upAll("sys/devices/pci0000:18/0000:18:00.0/net/eth1").With(
			file(1, "net/eth1/master", hcatest.Link("../../../../virtual/net/ovs-system")))},
	{"BlueField-2 with 126 representors", "https://github.com/MrBr-github/lshca/issues/57: PSID MT_0000000539, firmware " +
		"24.34.1002, ports 1, 2 and 67 of mlx5_0; the other ports, without a link, are filled in",
		nodeOf(with(rails("MT_0000000539", 0, 1, eth(edr)), func(_ int, h *hcatest.HCA) {
			idle := disabled
			idle.Netdevs = nil
			h.Ports = append(h.Ports, slices.Repeat([]hcatest.Port{idle}, 126)...)
		})), nil},
	{"host of SR-IOV with 16 functions that no pod has", "https://github.com/openshift/sriov-network-operator/issues/635: " +
		"8 functions (Down) below each physical one (Up), on InfiniBand; the rest is filled in", nodeOf(vfs(rails(connectX, 0, 1, ib(hdr))[0], 16, polling)), nil},
	{"scalable functions of a switchdev card", "https://docs.kernel.org/networking/devlink/devlink-port.html: " +
		"scalable functions; their states are filled in",
		hcatest.ScalableNode(), nil},
	{"ConnectX-8 with the sub-device of its planes", "https://github.com/torvalds/linux include/rdma/ib_verbs.h: " +
		"RDMA_DEVICE_TYPE_SMI; https://github.com/NVIDIA/NVSentinel/issues/1716: no issm; the rest is filled in",
		hcatest.Node{}, connectX8()},
	{"H20 with rails, a BlueField-3, and RoCE LAG", "https://github.com/stepfun-ai/StepMesh/issues/15: mlx5_bond_0 of 99:00.0 " +
		"and 99:00.1 with bond0 (Up), mlx5_1 and mlx5_2 of a BlueField-3 (Up), four ConnectX-7 whose netdevs, ibs108 to ibs114, " +
		"are (Down); the names of the rails, that their ports are ACTIVE, and the rest, are filled in",
		hcatest.Node{HCAs: slices.Concat(with(rails(ocp, 0, 4, ib(ndr)), ipoib), rails("MT_0000000884", 5, 2, eth(ndr)), []hcatest.HCA{{Name: "mlx5_bond_0", PCI: "0000:99:00.0", Driver: "mlx5_core",
			Board: "MT_0000000531", Ports: []hcatest.Port{{LinkLayer: "Ethernet", Rate: "25 Gb/sec (1X EDR)",
				Netdevs: []string{"ens1f0"}, Stacked: []hcatest.Netdev{{Name: "bond0", Kind: "bond"}}}}}}),
			PCI: []hcatest.PCI{{Address: "0000:99:00.1", Driver: "mlx5_core", Files: hcatest.Files{"vendor": "0x15b3\n",
				"device": "0x101f\n", "class": "0x020000\n", "net/ens1f1/bonding_slave/state": "ACTIVE\n"}}}},
		turnedOff(0, 4)},
	{"two dual-port cards, each with a port without a cable", "https://docs.cloudlab.us/hardware.html, xl170: two dual-" +
		"port ConnectX-4 of 25 Gb/s; the states, one ACTIVE and one DOWN and DISABLED of each, are those of tutorials for it; the " +
		"board is filled in",
		nodeOf(rails("MT_2420110034", 0, 1, eth("25 Gb/sec (1X EDR)")), rails("MT_2420110034", 1, 1, disabled),
			rails("MT_2420110034", 2, 1, eth("25 Gb/sec (1X EDR)")), rails("MT_2420110034", 3, 1, disabled)), nil},
	{"a dual-port card for each two GPUs, and one port of each without a cable", "https://docs.cloudlab.us/hardware.html, " +
		"xl170: one ACTIVE and one DOWN port of each card; InfiniBand, the GPUs, and that pods use RDMA, are filled in",
		hcatest.Node{HCAs: with(rails(connectX, 0, 8, ib(hdr)), func(i int, h *hcatest.HCA) {
			h.PCI = fmt.Sprintf("0000:%02x:00.%d", 0x10+8*(i/2), i%2)
			if i%2 == 1 {
				h.Ports[0] = polling
			}
		}), PCI: gpusOf(8)}, driver(open580).With(forPods)},
	{"ConnectX-6 Dx that nobody cabled", "https://github.com/deepseek-ai/3FS/issues/39: both ports of the only card Down and " +
		"Disabled on Ethernet, MT4125, firmware 22.37.1700, ens1f0np0 (Down); the board is filled in",
		nodeOf(with(rails("MT_0000000359", 0, 2, disabled), func(_ int, h *hcatest.HCA) { h.Firmware = "22.37.1700" })), nil},
	{"virtual machine with a ConnectX-6 and A100s of its host", "https://github.com/NVIDIA/nccl/issues/811: 00:09.0 is a " +
		"ConnectX-6 of InfiniBand, 00:0a.0 to 00:11.0 are A100, without a PCIe port above them; that the host's slot has half " +
		"of the card's lanes, and the rest, is filled in",
		hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: "0000:00:09.0", Driver: "mlx5_core", Firmware: "20.36.1010",
			Board: "MT_0000000223", Ports: []hcatest.Port{ib(hdr)}, Files: link("16.0 GT/s PCIe", 8, 16)}},
			PCI: []hcatest.PCI{{Address: "0000:00:0a.0", Driver: "nvidia", Files: hcatest.Files{"class": "0x030200\n",
				"vendor": "0x10de\n"}}}}, driver(open580)},
	{"virtual machine whose PCIe port QEMU makes up", "https://github.com/qemu/qemu hw/pci-bridge/gen_pcie_root_port.c: " +
		"1b36:000c with 32 lanes of 16 GT/s, whatever the host's slot has; the rest is filled in",
		hcatest.Node{HCAs: []hcatest.HCA{{Name: "mlx5_0", PCI: "0000:01:00.0", Above: "0000:00:02.0", Driver: "mlx5_core",
			Board: "MT_0000000223", Ports: []hcatest.Port{ib(hdr)}, Files: link("16.0 GT/s PCIe", 8, 16)}},
			PCI: []hcatest.PCI{{Address: "0000:00:02.0", Driver: "pcieport", Files: link("16.0 GT/s PCIe", 8, 32).With(
				hcatest.Files{"class": "0x060400\n", "vendor": "0x1b36\n", "device": "0x000c\n"})}}}, nil},
	{"functions of a BCM57508 that pods use in turn", "https://github.com/canonical/lxd/issues/15275: a function that a " +
		"guest uses logs its link again and again; https://github.com/torvalds/linux drivers/net/ethernet/broadcom/bnxt/bnxt.c, " +
		"bnxt_report_link: the words; the rest is filled in",
		nodeOf(with(vfs(rails("", 0, 1, eth(edr))[0], 2, eth(edr)), broadcom)),
		logged(times(12, "bnxt_en 0000:10:00.1 eth11: NIC Link is Down")...)},
	{"GeForce GPUs beside rails", "https://github.com/linux-rdma/perftest/issues/269: GeForce with nvidia_peermem, Couldn't allocate " +
		"MR; https://github.com/tinygrad/open-gpu-kernel-modules/issues/46: officially, GeForce has no GPUDirect RDMA; the node, whose " +
		"IOMMU translates, is filled in", hcatest.Node{HCAs: rails(ocp, 0, 8, ib(ndr)), PCI: gpusOf(8)}, driver(closed535).With(
		models(8, "NVIDIA GeForce RTX 4090")).With(file(0, "iommu_group/type", "DMA-FQ\n"))},
	{"a node with SELinux in permissive mode", "https://github.com/OpenXT/xenclient-oe/pull/257: { ipc_lock } of a program " +
		"that has nothing to do with RDMA, which goes on all the same; https://github.com/cockpit-project/bots/issues/5020: " +
		"{ ipc_lock sqpoll }; the line in permissive mode, in which nothing is denied, and the node are filled in",
		nodeOf(rails(ocp, 0, 4, ib(ndr))),
		logged(`60 audit: type=1400 audit(1.2:3): avc:  denied  { ipc_lock } for  pid=1196 comm="db-cmd" capability=14  `+
			`scontext=system_u:system_r:udev_t:s0-s0:c0.c1023 tcontext=system_u:system_r:udev_t:s0-s0:c0.c1023 tclass=capability `+
			`permissive=0`, `60 audit: type=1400 audit(1.2:4): avc:  denied  { ipc_lock sqpoll } for  pid=7 comm="pmproxy" `+
			`scontext=system_u:system_r:pcp_pmproxy_t:s0 tclass=capability permissive=0`,
			`60 audit: type=1400 audit(1.2:5): avc:  denied  { read write } for  pid=7 comm="ib_write_bw" `+
				`path="/dev/infiniband/uverbs0" scontext=system_u:system_r:container_t:s0 tclass=chr_file permissive=1`)},
	{"netdevs that were renamed after their links came up", "https://github.com/torvalds/linux drivers/net/ethernet/mellanox/" +
		"mlx5/core/en_main.c, mlx5e_update_carrier: \"Link up\" with the name of then; the names are filled in",
		nodeOf(rails(connectX, 0, 1, eth(edr)), rails(connectX, 1, 1, disabled)),
		upAll("sys/devices/pci0000:18/0000:18:00.0/net/eth1").With(logged("80000 mlx5_core 0000:10:00.0 eth1: Link up"))},
	{"a port without a cable that was turned on again and again", "https://github.com/torvalds/linux drivers/net/ethernet/" +
		"mellanox/mlx5/core/en_main.c, mlx5e_update_carrier: \"Link down\" each time; the node is filled in",
		nodeOf(rails(connectX, 0, 1, eth(edr)), rails(connectX, 1, 1, disabled)),
		upAll("sys/devices/pci0000:18/0000:18:00.0/net/eth1").With(logged(times(6, "mlx5_core 0000:18:00.0 eth1: Link down")...))},
	{"modules that were refused, and that nobody needs", "https://github.com/NVIDIA/gpu-operator/issues/2868: nvidia_peermem; " +
		"that the open GPU driver is there, which needs it not, and the module zfs of another kernel, are filled in",
		hcatest.Node{HCAs: rails(ocp, 0, 8, ib(ndr)), PCI: gpusOf(8)}, driver(open580).With(logged(
			"80000 nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
			"80000 zfs: disagrees about version of symbol module_layout"))},
	{"virtual machine of Azure with MANA", "https://github.com/torvalds/linux/blob/06d07429858317ded2db7986113a9e0129cd599b/" +
		"drivers/infiniband/hw/mana/device.c: no GUID, and mana_ib_query_port tells nothing; the rest is filled in",
		nodeOf(with(rails("", 0, 1, hcatest.Port{State: "0: NOP", PhysState: "0: <unknown>", LinkLayer: "Ethernet",
			Rate: "2.5 Gb/sec (1X SDR)"}), func(_ int, h *hcatest.HCA) {
			h.Name, h.Driver, h.GUID, h.NoMAD = "mana_0", "mana", "0000:0000:0000:0000", true
		})), route("eth0")},
	{"GB300", "https://github.com/NVIDIA/NVSentinel/issues/1716: issm missing on InfiniBand; its bridges, which " +
		"redirect as a Grace CPU needs it, are filled in",
		hcatest.Node{}, gb300()},
	{"Alibaba Cloud with erdma", "https://github.com/torvalds/linux drivers/infiniband/hw/erdma/erdma_verbs.c: iWARP, ACTIVE " +
		"by the carrier of the netdev with the GUID's address; the rest is filled in",
		hcatest.Node{HCAs: []hcatest.HCA{{Name: "erdma_0", NodeType: "4: RNIC", PCI: "0000:00:06.0", Driver: "erdma",
			GUID: "0216:3eff:fe01:0203", NoMAD: true, Ports: []hcatest.Port{eth(edr)}}}},
		hcatest.Files{"sys/class/net/eth0": hcatest.Link("../../devices/pci0000:00/0000:00:05.0/virtio2/net/eth0"),
			"sys/devices/pci0000:00/0000:00:05.0/virtio2/net/eth0/address": "00:16:3e:01:02:03\n",
			"sys/devices/pci0000:00/0000:00:05.0/virtio2/net/eth0/flags":   "0x1003\n"}},
	{"Omni-Path", "https://github.com/torvalds/linux drivers/infiniband/hw/hfi1/verbs.c: InfiniBand for its link layer; the rest is filled in", hcatest.OmniPathNode(), nil},
	{"the closed driver with nvidia_peermem, and an ib_core without memory_peers", "https://github.com/NVIDIA/nccl/issues/1939, " +
		"https://github.com/deepseek-ai/DeepEP/issues/151: the module is loaded, there is no nv_mem, and ib_write_bw --use_cuda " +
		"works; the node is filled in", hcatest.Node{HCAs: rails(ocp, 0, 8, ib(ndr)), PCI: gpusOf(8)},
		driver(closed535).With(hcatest.Files{"sys/module/nvidia_peermem/": "", "sys/module/mlx_compat/": ""})},
	{"the closed driver with nv_peer_mem", "https://github.com/Mellanox/nv_peer_memory: deprecated; the node, whose memory_peers " +
		"has another client alone, is filled in", hcatest.Node{HCAs: rails(ocp, 0, 8, eth(ndr)), PCI: gpusOf(8)},
		driver(closed535).With(hcatest.Files{"sys/module/nv_peer_mem/": "", "sys/kernel/mm/memory_peers/version": "1\n"})},
	{"Data Center GPU Max with four E810", "https://github.com/torvalds/linux drivers/gpu/drm/xe/xe_pci.c: the driver xe; " +
		"the class, and the rest, are filled in", hcatest.Node{HCAs: with(rails("", 0, 4, eth(edr)), intel),
		PCI: accelerators(4, "xe", "0x8086", "DMA-FQ")}, nil},
	{"laptop", "all filled in: no HCA, and a GPU", hcatest.Node{NoRDMACM: true, PCI: gpusOf(1)}, driver(closed535)},
})

func intel(_ int, h *hcatest.HCA) {
	h.Driver, h.NodeType, h.NoMAD = "ice", "4: RNIC", true
	pciIDs(h, "0x8086", "0x1592")
}
func broadcom(_ int, h *hcatest.HCA) { h.Driver = "bnxt_en"; pciIDs(h, "0x14e4", "0x1750") }
func pensando(_ int, h *hcatest.HCA) { h.Driver = "ionic"; pciIDs(h, "0x1dd8", "0x1002") }

func pciIDs(h *hcatest.HCA, vendor, device string) {
	h.Files = hcatest.Files{"vendor": vendor + "\n", "device": device + "\n", "subsystem_vendor": vendor + "\n",
		"subsystem_device": "0x0001\n", "class": "0x020000\n"}
}

// link is what a PCI device says of a link with these lanes, of so many that it could have.
func link(speed string, lanes, most int) hcatest.Files {
	return hcatest.Files{"current_link_speed": speed + "\n", "max_link_speed": speed + "\n",
		"current_link_width": fmt.Sprintln(lanes), "max_link_width": fmt.Sprintln(most)}
}

// kubernetes is a node of Kubernetes without RDMA: containerd with systemd's memlock, no plugin, and a kubelet.
var kubernetes = hcatest.Files{
	node.AnswersDir + "/runtimes.json": `{"answer": {"runtimes": [{"name": "containerd", "version": "2.1.4", "pid": 100, ` +
		`"unit": "containerd.service", "memlock": "8Mi", "socket": "/run/containerd/containerd.sock", "serves": true, "pods": 2, ` +
		`"config": "/etc/containerd/config.toml", "known": true, "defaultHandler": "runc"}]}}`,
	node.AnswersDir + "/kubelet.json": `{"answer": {"pid": 300, "root": "/var/lib/kubelet", "devicePlugins": true, ` +
		`"podResources": true, "allocatable": {"nvidia.com/gpu": 1}}}`,
}

// forPods says that the kubelet has HCAs for pods.
var forPods = hcatest.Files{node.AnswersDir + "/kubelet.json": `{"answer": {"pid": 9, "root": "/var/lib/kubelet", ` +
	`"devicePlugins": true, "podResources": true, "allocatable": {"rdma/hca_shared_devices_a": 63}}}`}

// ipoib gives an HCA of InfiniBand a netdev, and turnedOff turns those of several off.
func ipoib(i int, h *hcatest.HCA) { h.Ports[0].Netdevs = []string{fmt.Sprintf("ib%d", i)} }

func turnedOff(first, count int) hcatest.Files {
	files := hcatest.Files{}
	for i := range count {
		files.With(file(first+i, fmt.Sprintf("net/ib%d/flags", i), "0x1002\n"))
	}
	return files
}

// upAll turns netdevs on that have no carrier.
func upAll(netdevs ...string) hcatest.Files {
	files := hcatest.Files{}
	for _, at := range netdevs {
		files[at+"/flags"] = "0x1003\n"
	}
	return files
}

// route is the node's table of IPv4, with a network on a netdev.
func route(netdev string) hcatest.Files {
	return hcatest.Files{"proc/1/net/route": "Iface\tDestination\tGateway\tFlags\n" + netdev +
		"\t0000A8C0\t00000000\t0001\nlo\t0000FEA9\t00000000\t0001\n"}
}

// files lays a node out, with answers of a node without a runtime and a kubelet.
func (k known) files() hcatest.Files {
	files := k.node.Files()
	if len(k.node.HCAs) == 0 && k.with["device-table.txt"] != "" {
		files = hcatest.Files{}
	}
	for part, answer := range map[string]string{"runtimes": "{}", "plugin": "{}", "kubelet": "{}", "configured": "{}",
		"cdi": "{}", "rdma-cni": "{}", "listing": "{}", "policy": `{"source": {}, "config": {}}`} {
		files[node.AnswersDir+"/"+part+".json"] = `{"answer": ` + answer + `}`
	}
	return files.With(logged()).With(maps.Clone(k.with))
}

// Nothing is wrong with nodes that work, and little is unknown.
func TestKnownNodes(t *testing.T) {
	for _, k := range healthyNodes {
		t.Run(k.name, func(t *testing.T) {
			var unknown []string
			for _, f := range findings(t, k.files()) {
				switch f.Status {
				case doctor.Wrong:
					t.Errorf("%+v", f)
				case doctor.Unknown:
					unknown = append(unknown, f.Check+" "+f.Object+": "+f.Text)
				}
			}
			if len(unknown) > 3 || !strings.Contains(k.source, "filled in") {
				t.Errorf("%d unknown: %s; source: %s", len(unknown), strings.Join(unknown, "\n"), k.source)
			}
		})
	}
}

// rail is where HCA mlx5_N of rails has its files, and its port.
func rail(n int) (device, port string) {
	device = fmt.Sprintf("sys/devices/pci0000:%02x/0000:%02[1]x:00.0", 0x10+8*n)
	return device, fmt.Sprintf("%s/infiniband/mlx5_%d/ports/1", device, n)
}

// down is a port that has lost its link.
func down(n int, more hcatest.Files) hcatest.Files {
	_, port := rail(n)
	return hcatest.Files{port + "/state": "1: DOWN\n", port + "/phys_state": "2: Polling\n"}.With(more)
}

// file is a file of rail n's device, or of its port.
func file(n int, name, content string) hcatest.Files {
	device, port := rail(n)
	if after, ok := strings.CutPrefix(name, "port/"); ok {
		return hcatest.Files{port + "/" + after: content}
	}
	return hcatest.Files{device + "/" + name: content}
}

// flaps are lines of the log of a link that is lost each minute, for half of it, as they follow one another.
func flaps(n int, of string) (all []string) {
	for i := n - 1; i >= 0; i-- {
		all = append(all, fmt.Sprintf("%d %s: Link down", 60*i+30, of), fmt.Sprintf("%d %s: Link up", 60*i, of))
	}
	return all
}

// times repeats a line of the log: one each minute.
func times(n int, line string) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%d %s", 60*i, line))
	}
	return all
}

const (
	efaReachesGPUs     = "EC2 with EFA, whose driver reaches the memory of GPUs"
	dgx, ethernet, oci = "DGX H100, InfiniBand, storage not cabled",
		"DGX B200, Ethernet, half of each storage card not cabled",
		"OCI BM.GPU.H100.8, the second port of the front end not provisioned"
)

// fallenSick is a known node with a change.
func fallenSick(t *testing.T, of string, without []string, with hcatest.Files) hcatest.Files {
	t.Helper()
	return findKnown(t, of).files().Without(without...).With(with)
}

// The functions that drivers of cards make for RDMA lead to the modules that drive these. The names are those of the
// kernel's tables of auxiliary_device_id.
func TestHCADriver_functionsWithoutDriver(t *testing.T) {
	for name, module := range map[string]string{"mlx5_core.rdma.0": "mlx5_ib", "ionic.rdma.0": "ionic_rdma",
		"bng_en.rdma.0": "bng_re", "idpf.8086.rdma.core.0": "irdma"} {
		driver, _, _ := strings.Cut(name, ".")
		bad := wrong(findings(t, fallenSick(t, dgx, nil, card("0000:c0:00.0", "0x1dd8", "0x1002", "0x020700", driver).With(
			hcatest.Files{"sys/bus/auxiliary/devices/" + name: hcatest.Link("../../../devices/pci0000:c0/0000:c0:00.0/" + name),
				"sys/devices/pci0000:c0/0000:c0:00.0/" + name + "/x": ""}))))
		if len(bad) != 1 || bad[0].Check != "hca-driver" || bad[0].Object != "module "+module {
			t.Errorf("%s: %+v", name, bad)
		}
	}
}

// Where HCAs cannot reach the memory of any GPU, whatever the driver, the checks of that have nothing to look at.
func TestGPU_unreachableMemory(t *testing.T) {
	for model, gpus := range map[string]int{"NVIDIA GeForce RTX 4090": 8, "NVIDIA GB10": 1} {
		k := known{node: hcatest.Node{HCAs: rails(ocp, 0, 4, ib(ndr)), PCI: gpusOf(gpus)}}
		for some, want := range map[int]doctor.Status{gpus: doctor.NotApplied, gpus - 1: doctor.OK} {
			k.with = driver(open580).With(models(some, model))
			for _, f := range findings(t, k.files()) {
				if f.Family == "gpu" && (f.Status != want || strings.Contains(f.Text, model) != (some == gpus)) {
					t.Errorf("%d of %d are %s: %+v", some, gpus, model, f)
				}
			}
		}
	}
}

// Of the second function of a bond's card nothing is told: its RDMA is the first one's.
func TestRun_secondPortOfBond(t *testing.T) {
	for _, f := range findings(t, findKnown(t, "H20 with rails, a BlueField-3, and RoCE LAG").files()) {
		if strings.Contains(f.Object, "0000:99:00.1") {
			t.Errorf("%+v", f)
		}
	}
}

// What was an hour ago is told, and alarms nobody, and so is the error of a cable that was taken out.
func TestHCAErrors_pastErrors(t *testing.T) {
	k := findKnown(t, dgx)
	k.with = logged(append(flaps(2, "mlx5_core 0000:18:00.0"),
		"3601 mlx5_core 0000:10:00.0: print_health_info:429:(pid 0): synd 0x1: firmware internal error",
		"60 mlx5_core 0000:50:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
		"8 mlx5_core 0000:50:00.0: Port module event: module 0, Cable unplugged",
		"9000 mlx5_core 0000:58:00.0: temp_warn:157:(pid 0): High temperature on sensors with bit set 0 1")...)
	told := map[string]string{}
	for _, f := range findings(t, k.files()) {
		if f.Status == doctor.Wrong {
			t.Errorf("%+v", f)
		}
		if f.Check == "hca-errors" && f.Status == doctor.OK {
			told[f.Object] = f.Text
		}
	}
	if len(told) != 4 || !strings.Contains(told["HCA mlx5_0"], "0 times in the last hour, once in") ||
		!strings.Contains(told["HCA mlx5_1"], "2 times in the last hour") ||
		!strings.Contains(told["HCA mlx5_8"], "once in the last hour") || !strings.Contains(told["HCA mlx5_9"], "0 times in the last hour") {
		t.Errorf("%q", told)
	}
}
