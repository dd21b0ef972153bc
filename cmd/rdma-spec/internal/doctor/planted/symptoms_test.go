// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// symptoms are what people see, as public issues have it, and what finds it: the check, and a part of the cure. tree is
// the node that is planted with it: one of ailments, of planted, of plants, or of told. An HCA that hangs is
// TestHCAThatDoesNotAnswer's, and what a container sees of itself is package verify's.
var symptoms = []struct{ seen, issues, tree, check, cure string }{
	{"transfers end now and then: the port flaps", "NVIDIA/nccl#905, ROCm/rccl#1423", "a link that flaps", "hca-errors",
		"Reseat or replace the cable"},
	{"a port is down, and link_downed has ended at 255", "torvalds/linux include/rdma/ib_pma.h: 8 bits", "a storage port that had a link",
		"port-active", "Check the cable"},
	{"one rail of eight is down", "NVIDIA/NVSentinel#1379", "a rail without a link, the only one of eight", "port-active",
		"Check the cable"},
	{"PCIe errors that are fatal, by their counter", "torvalds/linux drivers/pci/pcie/aer.c", "fatal errors of PCIe",
		"hca-errors", "Reseat the card"},
	{"the same, in the kernel's log", "torvalds/linux drivers/pci/pcie/aer.c", "errors of PCIe in the log", "hca-errors",
		"Reseat the card"},
	{"firmware internal error", "torvalds/linux mlx5/core/health.c", "firmware that failed", "hca-errors",
		"install the card's current firmware"},
	{"Cable error", "torvalds/linux mlx5/core/events.c", "a bad cable, on a port that has no link since", "hca-errors",
		"Reseat or replace the cable or the module"},
	{"High temperature on sensors", "torvalds/linux mlx5/core/events.c", "a hot card", "hca-errors", "air flow"},
	{"CREATE_MKEY failed, limits exceeded", "openucx/ucx#6264", "no more memory regions", "hca-errors",
		"Let fewer processes use the HCA"},
	{"no port reaches another: no PKEY", "no public issue", "no partition key", "pkeys", "full member"},
	{"two limited members do not reach each other", "no public issue", "a limited member", "pkeys",
		"full member"},
	{"the pod has no GID of its own", "Mellanox/k8s-rdma-shared-dev-plugin#72, #112", "no interface of the HCA",
		"container-netdev", "Give the pod an interface of the HCA"},
	{"the pod has fe80 alone", "NVIDIA/nccl#769", "an interface of the HCA without an IP address", "container-netdev",
		"Give the interface an IP address"},
	{"the pod has RoCE v1 alone", "NVIDIA/nccl#769", "RoCE v1 alone", "container-netdev", ""},
	{"the GID at the index is another pod's, and both are net1", "NVIDIA/nccl#1573, k8snetworkplumbingwg/multus-cni#1100",
		"a GID index of another pod's interface", "container-gid-index", "Remove NCCL_IB_GID_INDEX"},
	{"GPUDirect is slow: the IOMMU translates", "NVIDIA/nccl#1737, #257", "an IOMMU that translates", "iommu", "iommu=pt"},
	{"the environment names HCAs that the pod lacks", "NVIDIA/nccl#1837", "NCCL_IB_HCA names an HCA of another container",
		"container-environment", "Remove NCCL_IB_HCA"},
	{"the environment names interfaces that the pod lacks", "NVIDIA/nccl#1837",
		"NCCL_SOCKET_IFNAME names an interface of the node", "container-environment", "Remove NCCL_SOCKET_IFNAME"},
	{"UCX's names what the pod lacks", "NVIDIA/nccl#1837", "UCX_NET_DEVICES names an HCA of another container",
		"container-environment", "Remove UCX_NET_DEVICES"},
	{"several rails, and rp_filter drops what comes in", "NVIDIA/nccl#2013, NVIDIA/nccl-tests#185",
		"two HCAs in one subnet, and a strict filter", "container-routes", "a subnet of its own"},
	{"several rails in one subnet: any of them answers ARP", "NVIDIA/nccl#2013", "one subnet", "container-routes", ""},
	{"several rails, and one default route", "NVIDIA/nccl-tests#185", "one default route", "container-routes", ""},
	{"the GPU and the HCA of a container are far apart", "no public issue", "a GPU beside another CPU",
		"container-gpu", ""},
	{"the MTU of the pod's interface is above the function's", "k8snetworkplumbingwg/sriov-network-operator#57",
		"an interface with a greater MTU than the function", "container-mtu", `Set "mtu": 4200`},
	{"does not support the kernel ABI of 6", "k8snetworkplumbingwg/sriov-cni#348", "a provider for another ABI",
		"container-provider", ""},
	{"mmap fails although memory is free", "openucx/ucx#6264", "few mappings", "max-map-count", "vm.max_map_count=262144"},
	{"CmaFree is above CmaTotal", "NVIDIA/NV-Kernels#590", "more free in CMA than it has", "cma", "kho=off"},
	{"nvidia_peermem is loaded, and not registered", "NVIDIA/nccl#1939", "nvidia_peermem that is not registered",
		"gpu-direct", "modprobe -r nvidia_peermem"},
	{"the open driver's DMA-BUF, on kernel 5.4", "NVIDIA/nccl#778", "the open driver on a kernel without DMA-BUF",
		"gpu-direct", "modprobe nvidia_peermem"},
	{"avc: denied, where auditd takes it", "no public issue", "SELinux denies", "security-denials",
		"container_use_devices"},
	{"ulimit -l shows 8 MiB, and containerd does not run", "no public issue", "a containerd that does not run",
		"memlock-source", ""},
}

// Each symptom is found by its check, with its cure; without one, it is told or unknown, and no fault.
func TestSymptoms(t *testing.T) {
	for _, s := range symptoms {
		want := doctor.Wrong
		if s.cure == "" {
			want = told[s.tree].status
		}
		if !slices.ContainsFunc(of(t, s.tree), func(f doctor.Finding) bool {
			return f.Check == s.check && f.Status == want && f.Object+f.Text != "" && strings.Contains(f.Cure, s.cure)
		}) {
			t.Errorf("%s: %s does not find it on the node with %s", s.seen, s.check, s.tree)
		}
	}
}

// of returns what is found on the node that is planted with a fault.
func of(t *testing.T, tree string) []doctor.Finding {
	t.Helper()
	if _, ok := planted[tree]; ok {
		return lookAt(t, tree)
	}
	if is, ok := told[tree]; ok {
		s := healthy()
		is.alter(s)
		return s.look(t, software())
	}
	plants := hardwarePlants()
	if i := slices.IndexFunc(plants, func(p plant) bool { return p.name == tree }); i >= 0 {
		return plants[i].findings(t)
	}
	if i := slices.IndexFunc(ailments, func(a ailment) bool { return a.name == tree }); i >= 0 {
		return ailments[i].findings(t)
	}
	t.Fatalf("no node is planted with %s", tree)
	return nil
}
