// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// plantedKnown are faults of known nodes. The messages are of the kernel's drivers (drivers/net/ethernet/mellanox/mlx5/core/{health,events,cmd,en_main}.c,
// drivers/pci/pcie/aer.c).
var plantedKnown = []fault{
	// seen in NVIDIA/NVSentinel#1379
	{
		name: "a rail without a link, the only one of eight", of: dgx,
		check: "port-active", object: "HCA mlx5_3 port 1",
		with: down(3, nil),
	},
	{
		name: "a storage port that had a link", of: dgx,
		check: "port-active", object: "HCA mlx5_8 port 1",
		with: file(8, "port/counters/link_downed", "255\n"),
	},
	{
		name: "a front end's port with an address", of: oci,
		check: "port-active", object: "HCA mlx5_9 port 1",
		with: file(9, "net/eth9/flags", "0x1003\n").With(route("eth9")),
	},
	{
		name: "a front end's port with an IPv6 address", of: oci,
		check: "port-active", object: "HCA mlx5_9 port 1",
		with: file(9, "net/eth9/flags", "0x1003\n").With(hcatest.Files{
			"proc/1/net/if_inet6": "20010db8000000000000000000000001 0a 40 00 80     eth9\n"}),
	},
	{
		name: "a port of a bond that lost its link", of: ethernet,
		check: "port-active", object: "HCA mlx5_9 port 1",
		with: file(9, "net/eth9/flags", "0x1003\n").With(
			file(9, "net/eth9/master", hcatest.Link("../../../../virtual/net/bond0"))).With(
			file(9, "net/eth9/bonding_slave/state", "ACTIVE\n")),
	},
	{
		name: "an E810 whose second port had a link", of: "E810, one of two ports without a cable",
		check: "port-active", object: "HCA mlx5_1 port 1",
		with: file(1, "net/eth1/flags", "0x1003\n").With(file(1, "net/eth1/carrier_up_count", "2\n")),
	},
	{
		name: "a BCM57508 whose second port had a link, by the log", of: "BCM57508, one of two ports without a cable",
		check: "port-active", object: "HCA mlx5_1 port 1",
		with: file(1, "net/eth1/flags", "0x1003\n").With(
			logged("80000 bnxt_en 0000:18:00.0 eth1: NIC Link is Up, 100000 Mbps (NRZ) full duplex, Flow control: none")),
	},
	{
		name: "a Pollara in a pod, without a link", of: "eight Pollara 400, two of them without a cable",
		check: "port-active", object: "HCA mlx5_6 port 1",
		with:    file(6, "port/gid_attrs/ndevs/0", "net1\n"),
		without: []string{"sys/devices/pci0000:40/0000:40:00.0/net", "sys/class/net/eth6"},
	},
	{
		name: "a rail that trained to half its rate", of: dgx,
		check: "port-rate", object: "HCA mlx5_2 port 1",
		with: file(2, "port/rate", hdr+"\n"),
	},
	{
		name: "a rail of ten that is slower than both rates of the board", of: "8 rails of 400G and 2 storage ports of 200G with one PSID",
		check: "port-rate", object: "HCA mlx5_5 port 1",
		with: file(5, "port/rate", edr+"\n"),
	},
	// seen in NVIDIA/nccl#905, ROCm/rccl#1423
	{
		name: "a link that flaps", of: ethernet,
		check: "hca-errors", object: "HCA mlx5_2",
		with: logged(flaps(12, "mlx5_core 0000:20:00.0 eth2")...),
	},
	{
		name: "firmware that failed", of: dgx,
		check: "hca-errors", object: "HCA mlx5_0",
		with: logged("600 mlx5_core 0000:10:00.0: print_health_info:429:(pid 0): synd 0x1: firmware " +
			"internal error"),
	},
	{
		name: "a bad cable, on a port that has no link since", of: dgx,
		check: "hca-errors", object: "HCA mlx5_8",
		with: logged("80000 mlx5_core 0000:50:00.0: Port module event[error]: " +
			"module 0, Cable error, Bad or shorted cable/module"),
	},
	{
		name: "a hot card", of: ethernet,
		check: "hca-errors", object: "HCA mlx5_0",
		with: logged("30 mlx5_core 0000:10:00.0: temp_warn:157:(pid 0): High temperature on sensors with bit " +
			"set 0 1"),
	},
	// seen in openucx/ucx#6264
	{
		name: "no more memory regions", of: dgx,
		check: "hca-errors", object: "HCA mlx5_1",
		with: logged("5 mlx5_core 0000:18:00.0: mlx5_cmd_out_err:808:(pid 9): CREATE_MKEY(0x200) " +
			"op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x59c8a4), err(-12)"),
	},
	{
		name: "errors of PCIe in the log", of: dgx,
		check: "hca-errors", object: "HCA mlx5_1",
		with: logged("5 mlx5_core 0000:18:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), " +
			"type=Transaction Layer, (Receiver ID)"),
	},
	{
		name: "fatal errors of PCIe", of: dgx,
		check: "hca-errors", object: "HCA mlx5_4",
		with: file(4, "aer_dev_fatal", "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1\n"),
	},
	{
		name: "SELinux denies a container the capability", of: dgx,
		check: "security-denials",
		with: logged(`60 audit: type=1400 audit(1.2:3): avc:  denied  { ipc_lock } for  ` +
			`pid=7 comm="ib_write_bw" capability=14  scontext=system_u:system_r:container_t:s0:c1,c2 tclass=capability permissive=0`),
	},
	{
		name: "no partition key", of: dgx,
		check: "pkeys", object: "HCA mlx5_6 port 1",
		with: file(6, "port/pkeys/0", "0x0000\n"),
	},
	{
		name: "a limited member", of: dgx,
		check: "pkeys", object: "HCA mlx5_6 port 1",
		with: file(6, "port/pkeys/0", "0x7fff\n"),
	},
	// seen in NVIDIA/nccl#1737, #257
	{
		name: "an IOMMU that translates", of: dgx,
		check: "iommu",
		with:  file(0, "iommu_group/type", "DMA-FQ\n"),
	},
	{
		name: "an EFA that does not reach GPUs", of: efaReachesGPUs,
		check: "gpu-direct", object: "module efa_nv_peermem",
		with: hcatest.Files{"sys/devices/pci0000:10/0000:10:1b.0/p2p": "\n"},
	},
	// seen in NVIDIA/nccl#778
	{
		name: "the open driver on a kernel without DMA-BUF", of: oci,
		check: "gpu-direct", object: "module nvidia_peermem",
		with: hcatest.Files{"proc/sys/kernel/osrelease": "5.4.0-150-generic\n"},
	},
	// seen in Mellanox/nv_peer_memory#79 and #84
	{
		name: "nvidia_peermem beside an ib_core without peer memory", of: dgx,
		check: "module-symbols", object: "module nvidia_peermem",
		with: driver(closed535).With(logged(
			"60 nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)")),
	},
	// seen in Mellanox/nv_peer_memory#84
	{
		name: "nv_peer_mem beside an ib_core without peer memory", of: dgx,
		check: "module-symbols", object: "module nv_peer_mem",
		with: logged("60 nv_peer_mem: Unknown symbol " +
			"ib_register_peer_memory_client (err 0)"),
	},
	// seen in NVIDIA/NV-Kernels#590
	{
		name: "more free in CMA than it has", of: "DGX Spark",
		check: "cma",
		with: hcatest.Files{"proc/meminfo": "MemTotal: 127535304 kB\n" +
			"MemAvailable: 118000000 kB\nCmaTotal: 32768 kB\nCmaFree: 90000000 kB\n"},
	},
	// seen in openucx/ucx#6264
	{
		name: "few mappings", of: dgx,
		check: "max-map-count",
		with:  hcatest.Files{"proc/sys/vm/max_map_count": "8192\n"},
	},
	{
		name: "a ConnectX-3 without its driver", of: "ConnectX-3, InfiniBand and an Ethernet port without a cable",
		check: "hca-driver", object: "module mlx4_core",
		with: card("0000:60:00.0", "0x15b3", "0x1003", "0x028000", ""),
	},
	{
		name: "an Ethernet card whose users lack rdma_ucm", of: "ConnectX-4 Lx as a network card",
		check: "rdma-cm-module",
		with: hcatest.Files{
			node.AnswersDir + "/runtimes.json": `{"answer": {}}`}.With(forPods),
	},
	{
		name: "a scalable function without a GUID", of: "scalable functions of a switchdev card",
		check: "guid-valid", object: "HCA mlx5_2",
		with: hcatest.Files{
			"sys/devices/pci0000:03/0000:03:00.0/mlx5_core.sf.2/infiniband/mlx5_2/node_guid": "0000:0000:0000:0000\n"},
	},
	{
		name: "rails beside GPUs, and nothing gives memlock", of: ethernet,
		check: "memlock-source", object: "runtime /run/containerd/containerd.sock",
		with: kubernetes,
	},
	{
		name: "an erdma, and nothing gives memlock", of: "Alibaba Cloud with erdma",
		check: "memlock-source", object: "runtime /run/containerd/containerd.sock",
		with: kubernetes,
	},
	{
		name: "a card without a link, whose functions pods have", of: "functions of a BCM57508 that pods use in turn",
		check: "port-active", object: "HCA mlx5_0 port 1",
		with: hcatest.Files{hcatest.Dir("mlx5_0", "0000:10:00.0") + "/ports/1/state": "1: DOWN\n",
			hcatest.Dir("mlx5_11", "0000:10:00.1") + "/ports/1/state":             "1: DOWN\n",
			hcatest.Dir("mlx5_11", "0000:10:00.1") + "/ports/1/gid_attrs/ndevs/0": "net1\n",
			hcatest.Dir("mlx5_12", "0000:10:00.2") + "/ports/1/state":             "1: DOWN\n",
			hcatest.Dir("mlx5_12", "0000:10:00.2") + "/ports/1/gid_attrs/ndevs/0": "net1\n",
		}.With(file(0, "net/eth0/carrier_up_count", "1\n")),
	},
	{
		name: "an erdma whose netdev has an address and no link", of: "Alibaba Cloud with erdma",
		check: "port-active", object: "HCA erdma_0 port 1",
		with: hcatest.Files{
			"sys/devices/pci0000:00/0000:00:06.0/infiniband/erdma_0/ports/1/state": "1: DOWN\n"}.With(route("eth0")),
	},
}
