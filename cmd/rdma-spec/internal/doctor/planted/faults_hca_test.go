// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

func virtualFunctions() hcatest.Files { return hcatest.Many(4).Files() }

func virtualInfiniBand() hcatest.Files {
	n := hcatest.Many(4)
	for i := range n.HCAs {
		n.HCAs[i].Ports[0].LinkLayer = "InfiniBand"
	}
	return n.Files()
}

// connectX8 has two HCAs of 800 Gb/s, the first with the sub-device of its four planes: it shares the PCI function and
// the node GUID, and by design it has no verbs device.
func connectX8() hcatest.Files {
	plane := hcatest.Port{Rate: "200 Gb/sec (1X XDR)"}
	whole := []hcatest.Port{{Rate: "800 Gb/sec (4X XDR)"}}
	n := hcatest.Node{HCAs: []hcatest.HCA{
		{Name: "ibp8s0f0", PCI: "0000:08:00.0", Driver: "mlx5_core", GUID: "7c8c:0903:00a9:5bd0", NoISSM: true, Ports: whole},
		{Name: "ibp9s0f0", PCI: "0000:09:00.0", Driver: "mlx5_core", GUID: "7c8c:0903:00a9:5be0", NoISSM: true, Ports: whole},
		{Name: "smi1", PCI: "0000:08:00.0", Driver: "mlx5_core", GUID: "7c8c:0903:00a9:5bd0",
			Ports: []hcatest.Port{plane, plane, plane, plane}},
	}}
	files := n.Files().Without("sys/class/infiniband_verbs/uverbs2",
		"sys/devices/pci0000:08/0000:08:00.0/infiniband_verbs/uverbs2")
	for _, h := range n.HCAs {
		files[hcatest.Dir(h.Name, h.PCI)+"/board_id"] = "NVD0000000042\n"
	}
	return files
}

// virtualWithoutGUID is a virtual function that has not been given a GUID, and idleFunction one that no pod has.
var (
	virtualWithoutGUID = hcatest.Files{hcatest.Dir("mlx5_2", "0000:00:00.2") + "/node_guid": "0000:0000:0000:0000\n"}
	idleFunction       = hcatest.Files{hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n"}
)

var plantedHCAs = []fault{
	{
		name: "a virtual function without a GUID on InfiniBand", node: virtualInfiniBand,
		check: "guid-valid", object: "HCA mlx5_2",
		with: virtualWithoutGUID,
	},
	{
		name: "a virtual function without a GUID on Ethernet", node: virtualFunctions,
		check: "guid-valid", object: "HCA mlx5_2",
		with: virtualWithoutGUID,
	},
	{
		name: "a virtual function without a GUID whose number has more than a byte", node: virtualFunctions,
		check: "guid-valid", object: "HCA mlx5_2",
		with: hcatest.Files{"sys/devices/pci0000:00/0000:00:00.0/virtfn300": hcatest.Link("../0000:00:00.2"),
			"sys/devices/pci0000:00/0000:00:00.0/virtfn1": hcatest.Link("../0000:00:00.9"),
		}.With(virtualWithoutGUID),
	},
	{
		name: "an idle virtual function without a GUID", node: virtualInfiniBand, status: doctor.OK,
		check: "guid-valid", object: "HCA mlx5_2", with: hcatest.Files{}.With(virtualWithoutGUID).With(idleFunction),
	},
	{
		name: "idle virtual functions whose GUIDs ib-sriov-cni took back", node: virtualInfiniBand, status: doctor.OK,
		check: "guid-valid", object: "HCA mlx5_2", with: hcatest.Files{
			hcatest.Dir("mlx5_2", "0000:00:00.2") + "/node_guid":     "ffff:ffff:ffff:ffff\n",
			hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n",
			hcatest.Dir("mlx5_3", "0000:00:00.3") + "/node_guid":     "ffff:ffff:ffff:ffff\n",
			hcatest.Dir("mlx5_3", "0000:00:00.3") + "/ports/1/state": "1: DOWN\n",
		},
	},
	{
		name: "a physical function without a GUID", check: "guid-valid", object: "HCA mlx5_1",
		with: hcatest.Files{at(1) + "/node_guid": "0000:0000:0000:0000\n"},
	},
	{
		name: "a virtual function without a GUID in a virtual machine", check: "guid-valid", object: "HCA mlx5_1",
		with: hcatest.Files{at(1) + "/node_guid": "0000:0000:0000:0000\n", pci(1) + "/device": "0x101c\n"},
	},
	{
		name: "two HCAs with one GUID", check: "guid-unique", object: "HCA mlx5_3",
		with: hcatest.Files{at(3) + "/node_guid": "b859:9f03:00a9:5bd0\n"},
	},
	{
		name: "an older firmware", check: "firmware-same", object: "HCA mlx5_1",
		with: hcatest.Files{at(1) + "/fw_ver": "28.9.1000\n"},
	},
	{
		name: "no verbs device although the port is ACTIVE", check: "class-devices", object: "HCA mlx5_1",
		without: []string{pci(1) + "/infiniband_verbs", "sys/class/infiniband_verbs/uverbs1"},
	},
	{
		name: "a soft HCA without its verbs device", node: func() hcatest.Files { return hcatest.SoftRoCENode().Files() },
		check: "class-devices", object: "HCA rxe0", without: []string{"sys/class/infiniband_verbs/uverbs0"},
	},
	{
		name: "no umad although the port is ACTIVE", check: "class-devices", object: "HCA mlx5_1",
		without: []string{pci(1) + "/infiniband_mad", "sys/class/infiniband_mad/umad1", "sys/class/infiniband_mad/issm1"},
	},
	{
		name: "neither a ConnectX-8 nor its sub-device has a verbs device", node: connectX8, check: "class-devices",
		object: "HCA ibp8s0f0",
		without: []string{
			"sys/class/infiniband_verbs/uverbs0", "sys/devices/pci0000:08/0000:08:00.0/infiniband_verbs",
		},
	},
	{
		name: "no verbs device of one of two ConnectX-8", node: connectX8, check: "class-devices",
		object: "HCA ibp9s0f0",
		without: []string{
			"sys/class/infiniband_verbs/uverbs1", "sys/devices/pci0000:09/0000:09:00.0/infiniband_verbs",
		},
	},
	{
		name: "no verbs device of a virtual function", node: virtualFunctions, check: "class-devices",
		object: "HCA mlx5_2",
		without: []string{
			"sys/class/infiniband_verbs/uverbs2", "sys/devices/pci0000:00/0000:00:00.2/infiniband_verbs",
		},
	},
	{
		name: "a PCIe link of half the width", check: "pcie-link", object: "HCA mlx5_0",
		with: hcatest.Files{pci(0) + "/current_link_width": "8\n"},
	},
	{
		name: "a PCIe link below its speed", check: "pcie-link", object: "HCA mlx5_0",
		with: hcatest.Files{pci(0) + "/current_link_speed": "8.0 GT/s PCIe\n"},
	},
	{
		name: "a switch above an HCA with a link of half its width", check: "pcie-link", object: "HCA mlx5_0",
		with: hcatest.Files{
			hcatest.PCIDir(switchUp, rootPort) + "/current_link_width": "8\n",
			hcatest.PCIDir(switchUp, rootPort) + "/current_link_speed": "32.0 GT/s PCIe\n",
		},
	},
	{
		name: "an HCA that cannot be read", check: "port-active", object: "HCA mlx5_1 port 1", status: doctor.Unknown,
		with: hcatest.Files{at(1) + "/ports/1/state": "garbage\n"},
	},
}

var plantedPorts = []fault{
	{
		name: "an InfiniBand port that lost its link", check: "port-active", object: "HCA mlx5_1 port 1",
		with: hcatest.Files{
			at(1) + "/ports/1/state": "1: DOWN\n", at(1) + "/ports/1/phys_state": "2: Polling\n",
			at(1) + "/ports/1/rate": "10 Gb/sec (4X SDR)\n", at(1) + "/ports/1/counters/link_downed": "1\n",
		},
	},
	{
		name: "an InfiniBand port without a subnet manager", check: "port-active", object: "HCA mlx5_0 port 1",
		with: hcatest.Files{at(0) + "/ports/1/state": "2: INIT\n"},
	},
	{
		name: "a RoCE port that lost its link", check: "port-active", object: "HCA mlx5_3 port 1",
		with: hcatest.Files{at(3) + "/ports/1/state": "1: DOWN\n", at(3) + "/ports/1/phys_state": "3: Disabled\n",
			pci(3) + "/net/net3/carrier_up_count": "3\n"},
	},
	{
		name: "a RoCE port that is turned off", check: "port-active", object: "HCA mlx5_3 port 1", status: doctor.OK,
		with: hcatest.Files{at(3) + "/ports/1/state": "1: DOWN\n", pci(3) + "/net/net3/flags": "0x1002\n"},
	},
	{
		name: "a RoCE port without a cable", check: "port-active", object: "HCA mlx5_3", status: doctor.OK,
		with: hcatest.Files{at(3) + "/ports/1/state": "1: DOWN\n", at(3) + "/ports/1/phys_state": "3: Disabled\n"},
	},
	{
		name: "the only port is turned off", node: onlyPort, check: "port-active", object: "HCA rxe0 port 1",
		with: hcatest.Files{
			hcatest.Dir("rxe0", "") + "/ports/1/state": "1: DOWN\n", "sys/devices/virtual/net/eth0/flags": "0x1002\n",
		},
	},
	{
		name: "an InfiniBand port that is turned off", check: "port-active", object: "HCA mlx5_0 port 1", status: doctor.OK,
		with: hcatest.Files{at(0) + "/ports/1/state": "1: DOWN\n", at(0) + "/ports/1/phys_state": "3: Disabled\n"},
	},
	{
		name: "a virtual function that is DOWN", node: virtualFunctions, check: "port-active",
		object: "PCI device 0000:00:00.0", status: doctor.OK,
		with: hcatest.Files{hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n"},
	},
	{
		name: "a port at half the rate of the others", check: "port-rate", object: "HCA mlx5_4 port 1",
		with: hcatest.Files{at(4) + "/ports/1/rate": "200 Gb/sec (4X HDR)\n"},
	},
	{
		name: "an InfiniBand link on one lane", check: "port-rate", object: "HCA mlx5_2 port 1",
		with: hcatest.Files{at(2) + "/ports/1/rate": "100 Gb/sec (1X NDR)\n"},
	},
	{
		name: "a full GID table", check: "gids-free", object: "HCA mlx5_3 port 1", with: fullTable(),
	},
	{
		name: "two MTUs", check: "mtu-same", object: "HCA mlx5_4 port 1", status: doctor.Unknown,
		with: hcatest.Files{pci(4) + "/net/net4/mtu": "1500\n"},
	},
}

func onlyPort() hcatest.Files {
	n := hcatest.SoftRoCENode()
	n.HCAs = n.HCAs[:1]
	return n.Files()
}

func fullTable() hcatest.Files {
	files := hcatest.Files{}
	for i := range 16 {
		files[fmt.Sprintf("%s/ports/1/gids/%d", at(3), i)] = fmt.Sprintf("fe80:0000:0000:0000:0202:02ff:fe02:%04x\n", i)
	}
	return files
}
