// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

var plantedModules = []fault{
	{
		name: "mlx5_ib is not loaded", node: withoutRDMA, check: "hca-driver", object: "module mlx5_ib",
		without: []string{"sys/module/mlx5_ib", "sys/devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0/driver"},
		with:    hcatest.Files{"sys/devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0/x": ""},
	},
	{
		name: "mlx5_ib is loaded and drives nothing", node: withoutRDMA, check: "hca-driver", object: "module mlx5_ib",
		without: []string{"sys/devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0/driver"},
		with:    hcatest.Files{"sys/devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0/x": "", "sys/module/mlx5_ib/": ""},
	},
	{
		name: "mlx5_core is not loaded", check: "hca-driver", object: "module mlx5_core", with: card("0000:d0:00.0", "0x15b3",
			"0x1021", "0x020000", ""),
	},
	{
		name: "efa is not loaded", check: "hca-driver", object: "module efa", with: card("0000:d0:00.0", "0x1d0f", "0xefa1",
			"0x020000", ""),
	},
	{
		name: "hfi1 is not loaded", check: "hca-driver", object: "module hfi1", with: card("0000:d0:00.0", "0x8086", "0x24f0",
			"0x020800", ""),
	},
	{
		name: "irdma is not loaded", check: "hca-driver", object: "module irdma", status: doctor.Unknown,
		with: card("0000:d0:00.0", "0x8086", "0x1592", "0x020000", "ice").With(hcatest.Files{
			"sys/bus/auxiliary/devices/ice.roce.0":             hcatest.Link("../../../devices/pci0000:d0/0000:d0:00.0/ice.roce.0"),
			"sys/devices/pci0000:d0/0000:d0:00.0/ice.roce.0/x": "",
		}),
	},
	{
		name: "ib_uverbs is not loaded", check: "uverbs-module",
		without: []string{
			"sys/class/infiniband_verbs", pci(0) + "/infiniband_verbs", pci(1) + "/infiniband_verbs",
			pci(2) + "/infiniband_verbs",
			pci(3) + "/infiniband_verbs", pci(4) + "/infiniband_verbs", pci(5) + "/infiniband_verbs",
		},
	},
	{
		name: "rdma_ucm is not loaded", check: "rdma-cm-module", without: []string{"sys/class/misc/rdma_cm"},
	},
	{
		name: "modules of DOCA beside the kernel's own", check: "modules-of-one-build",
		with: hcatest.Files{
			"sys/module/mlx_compat/holders/mlx5_core": "", "sys/module/mlx_compat/holders/mlx5_ib": "",
			"sys/module/ib_core/holders/ib_srpt": "",
			"sys/module/ib_core/holders/rdma_cm": "", "sys/module/rdma_cm/holders/ib_srpt": "",
			"sys/module/ib_srpt/holders/": "",
		},
	},
}

// withoutRDMA has a card whose RDMA has a driver, and whose HCA is in another network namespace.
func withoutRDMA() hcatest.Files {
	n := hcatest.Node{PCI: []hcatest.PCI{{Address: "0000:b5:00.0", Driver: "mlx5_core", Files: hcatest.Files{
		"vendor": "0x15b3\n", "device": "0x1021\n", "class": "0x020700\n",
		"mlx5_core.rdma.0/driver":      hcatest.Link("../../../../bus/auxiliary/drivers/mlx5_ib.rdma"),
		"infiniband_verbs/uverbs0/dev": "231:192\n",
	}}}}
	return n.Files().With(hcatest.Files{
		"sys/bus/auxiliary/devices/mlx5_core.rdma.0": hcatest.Link("../../../devices/pci0000:b5/0000:b5:00.0/mlx5_core.rdma.0"),
		"sys/bus/auxiliary/drivers/mlx5_ib.rdma/":    "",
	})
}

// card is a PCI device.
func card(address, vendor, device, class, driver string) hcatest.Files {
	n := hcatest.Node{NoRDMACM: true, PCI: []hcatest.PCI{{Address: address, Driver: driver, Files: hcatest.Files{
		"vendor": vendor + "\n", "device": device + "\n", "class": class + "\n",
	}}}}
	files := n.Files()
	for name := range files {
		if name == "device-table.txt" || name[len(name)-1] == '/' || name == "sys/dev/char/1:3" {
			delete(files, name)
		}
	}
	return files
}

var plantedDevices = []fault{
	{
		name: "a device node is missing", check: "device-nodes", object: "HCA mlx5_1 device /dev/infiniband/uverbs1",
		with: table(row("uverbs1", "c", hca.Number{Major: 231, Minor: 193}), ""),
	},
	{
		name: "a block device in place of a device node", check: "device-nodes",
		object: "HCA mlx5_1 device /dev/infiniband/uverbs1",
		with: table(row("uverbs1", "c", hca.Number{Major: 231, Minor: 193}),
			row("uverbs1", "b", hca.Number{Major: 8, Minor: 0})),
	},
	{
		name: "a device node with another number", check: "device-nodes", object: "device /dev/infiniband/rdma_cm",
		with: table(row("rdma_cm", "c", hca.Number{Major: 10, Minor: 58}),
			row("rdma_cm", "c", hca.Number{Major: 1, Minor: 3})),
	},
	{
		name: "no device node at all", check: "device-nodes", status: doctor.Unknown, without: []string{hca.DeviceTable},
	},
	{
		name: "no device node in a directory that is there", check: "device-nodes",
		object: "HCA mlx5_0 device /dev/infiniband/uverbs0", node: single,
		with: hcatest.Files{hca.DeviceTable: "", "dev/infiniband/": ""},
	},
	{
		name: "a pod at its limit of HCA handles", check: "cgroup-rdma",
		object: "cgroup /kubepods.slice/kubepods-podx.slice/cri-containerd-1.scope",
		with: hcatest.Files{
			"sys/fs/cgroup/kubepods.slice/kubepods-podx.slice/cri-containerd-1.scope/rdma.max":     "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n",
			"sys/fs/cgroup/kubepods.slice/kubepods-podx.slice/cri-containerd-1.scope/rdma.current": "mlx5_0 hca_handle=2 hca_object=20\nmlx5_1 hca_handle=9 hca_object=9\n",
		},
	},
	{
		name: "a pod at its limit of HCA handles, in cgroup version 1", check: "cgroup-rdma",
		object: "cgroup /rdma/kubepods.slice/kubepods-podx.slice",
		with: hcatest.Files{
			"sys/fs/cgroup/rdma/kubepods.slice/kubepods-podx.slice/rdma.max":     "mlx5_0 hca_handle=2 hca_object=max\n",
			"sys/fs/cgroup/rdma/kubepods.slice/kubepods-podx.slice/rdma.current": "mlx5_0 hca_handle=2 hca_object=20\n",
		},
	},
}

func single() hcatest.Files {
	n := hcatest.V100Node()
	n.HCAs, n.NoRDMACM = n.HCAs[:1], true
	n.HCAs[0].NoMAD, n.HCAs[0].NodeType = true, "7: unspecified"
	return n.Files()
}

// table is healthyNode's table of devices with a line changed.
func table(line, to string) hcatest.Files {
	return hcatest.Files{hca.DeviceTable: strings.Replace(healthyNode()[hca.DeviceTable], line, to, 1)}
}

var plantedNetns = []fault{
	{
		name: "exclusive mode, and rdma-cni is not found", check: "netns-mode", status: doctor.Unknown,
		with: hcatest.Files{"sys/module/ib_core/parameters/netns_mode": "N\n"},
	},
	{
		name: "shared mode with rdma-cni", check: "netns-mode", with: hcatest.Files{node.AnswersDir +
			"/rdma-cni.json": `{"answer": {"configured": "/etc/cni/net.d/10-net.conflist"}}`},
	},
	{
		name: "an HCA that is gone", check: "hca-present", object: "PCI device 0000:b5:00.0",
		without: []string{
			"sys/class/infiniband/mlx5_1", "sys/class/infiniband_verbs/uverbs1", "sys/class/infiniband_mad/umad1",
			"sys/class/infiniband_mad/issm1",
			pci(1) + "/infiniband", pci(1) + "/infiniband_verbs",
		},
	},
	{
		name: "an EFA that is gone", check: "hca-present", object: "PCI device 0000:d0:00.0", with: card("0000:d0:00.0",
			"0x1d0f", "0xefa1", "0x020000", "efa"),
	},
	{
		name: "a NIC without RDMA", check: "hca-present", object: "PCI device 0000:d0:00.0", status: doctor.OK,
		with: card("0000:d0:00.0", "0x15b3", "0x1015", "0x020000", "mlx5_core"),
	},
}

var plantedGPUs = []fault{
	{
		name: "neither peermem nor DMA-BUF", check: "gpu-direct", object: "module nvidia_peermem",
		with: hcatest.Files{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n"},
	},
	{
		name: "ACS hardware.Redirects on a switch", check: "acs", with: hcatest.Files{hcatest.PCIDir(downToGPU, rootPort+
			"/"+switchUp) + "/config": config(hardware.Redirects)},
	},
	{
		name: "configuration space that only root can read", check: "acs", status: doctor.Unknown,
		with: hcatest.Files{hcatest.PCIDir(downToGPU, rootPort+"/"+switchUp) + "/config": config(0)[:64]},
	},
}

var plantedKernel = []fault{
	{
		name: "nvidia_peermem built for another ib_core", check: "module-symbols", object: "module nvidia_peermem",
		with: hcatest.Files{
			"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n",
			node.AnswersDir +
				"/kernel-log.json": `{"answer": {"now": 9000, "lines": [{"at": 5, "text": "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"},
				{"at": 5, "text": "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"}]}}`,
		},
	},
	{
		name: "SELinux denies", check: "security-denials",
		with: hcatest.Files{node.AnswersDir + "/kernel-log.json": `{"answer": {"now": 9000, "lines": [
			{"at": 8000, "text": "audit: type=1400 audit(1.2:3): avc:  denied  { read write } for  pid=7 comm=\"ib_write_bw\" path=\"/dev/infiniband/uverbs0\" tclass=chr_file"}]}}`},
	},
	{
		name: "AppArmor denies", check: "security-denials",
		with: hcatest.Files{node.AnswersDir + "/kernel-log.json": `{"answer": {"now": 9000, "lines": [
			{"at": 8000, "text": "audit: type=1400 apparmor=\"DENIED\" operation=\"open\" name=\"/dev/infiniband/uverbs0\""}]}}`},
	},
	{
		name: "a log that cannot be read", check: "hca-errors", status: doctor.Unknown,
		with: hcatest.Files{node.AnswersDir + "/kernel-log.json": `{"error": "open /dev/kmsg: operation not permitted"}`},
	},
}

var plantedMemory = []fault{
	{
		name: "free memory in CMA alone", check: "cma",
		with: hcatest.Files{"proc/meminfo": "MemTotal: 125829120 kB\nMemAvailable: 34000000 kB\nCmaFree: 33554432 kB\n"},
	},
	{
		name: "EFA without huge pages", node: efa, check: "efa-pages", status: doctor.Unknown,
		with: hcatest.Files{"proc/meminfo": "MemTotal: 125829120 kB\nHugePages_Total: 0\n"},
	},
}

func efa() hcatest.Files {
	return hcatest.EFANode().Files().With(hcatest.Files{"proc/meminfo": "MemTotal: 125829120 kB\nHugePages_Total: 5128\n"})
}
