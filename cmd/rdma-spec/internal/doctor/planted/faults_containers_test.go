// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// plantedContainers are faults of containers. TestContainerMemlock_causes has more of container-memlock.
var plantedContainers = []fault{
	{
		name: "a container below policy", check: "container-memlock", object: theTrainer,
		plant: func(s *sick) {
			c := s.container()
			c.State, c.Memlock, c.Registers, c.Raise.Action = node.StateBelow, both(8<<20), bytesOf(8<<20), node.Repair
			c.Problems = []string{"memlock is 8Mi, the policy gives unlimited"}
		},
	},
	{
		name: "a user without the IPC_LOCK of its pod", check: "container-ipc-lock", object: theTrainer,
		plant: func(s *sick) {
			c := s.container()
			c.State, c.Memlock, c.Registers, c.IPCLock, c.Raise.Action = node.StateBelow, both(8<<20), bytesOf(8<<20),
				yes(false), node.Repair
		},
	},
	{
		name: "a container with few open files", check: "container-files", object: theTrainer,
		plant: func(s *sick) {
			s.container().OpenFiles = both(1024)
		},
	},
	{
		name: "an HCA that was made anew", check: "container-hca", object: "container ml/old main",
		plant: func(s *sick) {
			s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "old", Container: "main"},
				Inside: process.Inside{User: -1}, Stale: []string{"/dev/infiniband/uverbs0 has the device number 231:200, which no longer belongs to an HCA"}}}
		},
	},
	{
		name: "two pods with one address", check: "container-netdev", object: "container ml/train-1 worker HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			other := *s.container()
			other.Pod = "train-1"
			s.containers.Containers = []node.Container{*s.container(), other}
		},
	},
	{
		name: "HCAs that NVIDIA's container runtime added after NRI", check: "container-unseen", object: theTrainer,
		plant: func(s *sick) {
			c := s.container()
			c.RDMA, c.State, c.Memlock, c.Registers, c.Wanted = false, node.StateUnseen, both(8<<20), bytesOf(8<<20), nil
			c.Fix = `list the runtime handler "nvidia" in optIn.mofedRuntimeHandlers, and recreate the pod`
			c.Problems = []string{"the plugin did not see the container's HCAs, because NVIDIA's container runtime added " +
				"them (NVIDIA_MOFED=enabled) after the NRI plugins had run"}
		},
	},
	{
		name: "a container that would be refused", check: "container-refused", object: theTrainer,
		plant: func(s *sick) {
			s.container().State, s.container().Problems = "refused",
				[]string{`the policy would refuse the container if it were created now: the policy does not allow pods in namespace "ml" to opt in by annotation`}
		},
	},
	{
		name: "a container without the HCA of its annotation", check: "container-hca", object: theTrainer,
		plant: func(s *sick) {
			s.container().State, s.container().HCAs = "below", nil
			s.container().Wanted = &spec.Grant{Memlock: unlimited, Devices: []hca.Device{{}}}
			s.container().Lacks = spec.Grant{Devices: []hca.Device{{}}}
			s.container().Problems = []string{"the container has no HCA, but the policy grants mlx5_0"}
			s.container().Fix = "recreate the pod"
		},
	},
	// seen in k8snetworkplumbingwg/sriov-network-device-plugin#123
	{
		name: "a function with an HCA, no verbs device, and DPDK", check: "container-hca", object: "container ml/dpdk main",
		plant: func(s *sick) {
			s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "dpdk", Container: "main"},
				Inside:    process.Inside{User: -1, HugePages: true},
				Functions: []string{"PCI function 0000:18:00.2 (mellanox.com/sriov), HCA mlx5_5"}}}
		},
	},
	{
		name: "an HCA that manages NVSwitches", check: "container-hca", object: theTrainer + " HCA mlx5_8",
		plant: func(s *sick) {
			i := slices.IndexFunc(healthyNodes, func(k known) bool { return k.name == b200NVSwitches })
			s.files, s.container().HCAs = healthyNodes[i].node.Files(), []string{"mlx5_0", "mlx5_8"}
		},
	},
	// seen in NVIDIA/nccl#451
	{
		name: "an Ethernet HCA that came along with those of InfiniBand", check: "container-netdev", object: theTrainer + " HCA mlx5_7",
		plant: func(s *sick) {
			s.files = nodeOf(rails(ocp, 0, 7, ib(ndr)), rails(connectX, 7, 1, eth(edr))).Files()
			s.container().HCAs = nil
			for i := range 8 {
				s.container().HCAs = append(s.container().HCAs, fmt.Sprintf("mlx5_%d", i))
			}
			s.container().OwnNetwork, s.container().Addresses = true, addresses("10.244.0.7")
		},
	},
	{
		name: "a container with a port that is down", check: "container-port", object: "HCA mlx5_0 port 1",
		plant: func(s *sick) {
			node := hcatest.RoCENode()
			node.HCAs[0].Ports[0] = node.HCAs[0].Ports[0].Down()
			s.files = node.Files()
		},
	},
	// seen in Mellanox/network-operator#249
	{
		name: "a virtual function that the subnet manager does not serve", check: "container-port", object: "HCA mlx5_2 port 1",
		plant: func(s *sick) {
			s.files, s.container().HCAs = virtualInfiniBand().With(hcatest.Files{
				hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n"}), []string{"mlx5_2"}
		},
	},
	// seen in k8snetworkplumbingwg/sriov-network-operator#382
	{
		name: "a virtual function whose link is off", check: "container-port", object: "HCA mlx5_2 port 1",
		plant: func(s *sick) {
			s.files, s.container().HCAs = virtualInfiniBand().With(hcatest.Files{
				hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/state":      "1: DOWN\n",
				hcatest.Dir("mlx5_2", "0000:00:00.2") + "/ports/1/phys_state": "3: Disabled\n"}), []string{"mlx5_2"}
		},
	},
	{
		name: "a virtual function whose representor is off", check: "container-port", object: "HCA mlx5_2 port 1",
		plant: func(s *sick) {
			n := hcatest.Many(4)
			n.HCAs[2].Ports[0] = n.HCAs[2].Ports[0].Down()
			s.files, s.container().HCAs = n.Files().With(hcatest.Files{
				"sys/devices/pci0000:00/0000:00:00.0/net/eth0_0/phys_port_name": "pf0vf0\n",
				"sys/devices/pci0000:00/0000:00:00.0/net/eth0_1/phys_port_name": "pf0vf1\n"}), []string{"mlx5_2"}
		},
	},
	{
		name: "a hostPath and no device", check: "container-hostpath", object: "container ml/efa-0 worker",
		plant: func(s *sick) {
			s.containers.Containers = append(s.containers.Containers, node.Container{Report: node.Report{Namespace: "ml",
				Pod: "efa-0", Container: "worker", State: "ok"}, Inside: process.Inside{HostPaths: []string{"/dev/infiniband"}}})
		},
	},
	{
		name: "a hostPath beside the device plugin", check: "container-hostpath", object: theTrainer,
		plant: func(s *sick) {
			s.container().HostPaths = []string{"/dev/infiniband"}
		},
	},
	{
		name: "an HCA of the node in exclusive mode", check: "container-hca", object: theTrainer,
		plant: func(s *sick) {
			*s = *onNetwork(hcatest.ExclusiveFiles("mlx5_0", "mlx5_2"), "mlx5_0")
			neighbor := *s.container()
			neighbor.Pod, neighbor.HCAs = "train-1", []string{"mlx5_1"}
			s.containers.Containers = append(s.containers.Containers, neighbor)
		},
	},
	// seen in Mellanox/k8s-rdma-shared-dev-plugin#72, #112
	{
		name: "no interface of the HCA", check: "container-netdev", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.container().OwnNetwork, s.container().Addresses = true, addresses("10.244.0.7")
		},
	},
	{
		name: "no address but that of lo", check: "container-netdev", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.container().OwnNetwork = true
		},
	},
	// seen in NVIDIA/nccl#1573, k8snetworkplumbingwg/multus-cni#1100
	{
		name: "a GID index of another pod's interface", check: "container-gid-index", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "11"}
			s.files[gidOf(0, 11)] = "0000:0000:0000:0000:0000:ffff:0af4:0009\n"
		},
	},
	{
		name: "a GID index of another pod's interface, on the node's network", check: "container-gid-index", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().OwnNetwork, s.container().Env = false, cri.Env{"NCCL_IB_GID_INDEX": "11"}
			s.files[gidOf(0, 11)] = "0000:0000:0000:0000:0000:ffff:0af4:0009\n"
		},
	},
	{
		name: "a GID index that the HCA does not have", check: "container-gid-index", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "250"}
		},
	},
	// seen in NVIDIA/nccl#769
	{
		name: "an interface of the HCA without an IP address", check: "container-netdev", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.container().OwnNetwork, s.container().LinkLocal = true, addresses("fe80::202:2ff:fe02:0")
		},
	},
	{
		name: "no address of the second HCA", check: "container-netdev", object: theTrainer + " HCA mlx5_1",
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().HCAs = []string{"mlx5_0", "mlx5_1"}
		},
	},
	// seen in NVIDIA/nccl#1837
	{
		name: "NCCL_IB_HCA names an HCA of another container", check: "container-environment", object: theTrainer,
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_HCA": "=mlx5_1:1,mlx5_7"}
		},
	},
	// seen in NVIDIA/nccl#1837
	{
		name: "NCCL_SOCKET_IFNAME names an interface of the node", check: "container-environment", object: theTrainer,
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_SOCKET_IFNAME": "bond0"}
		},
	},
	// seen in NVIDIA/nccl#1837
	{
		name: "UCX_NET_DEVICES names an HCA of another container", check: "container-environment", object: theTrainer,
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"UCX_NET_DEVICES": "mlx5_1:1"}
		},
	},
	// seen in k8snetworkplumbingwg/sriov-network-operator#57
	{
		name: "an interface with a greater MTU than the function", check: "container-mtu", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().MTU = map[string]int{"net1": 9000}
		},
	},
	// seen in NVIDIA/nccl#2013, NVIDIA/nccl-tests#185
	{
		name: "two HCAs in one subnet, and a strict filter", check: "container-routes", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8", "10.244.0.9")
			s.container().Links[0].Strict, s.container().Links[1].Strict = true, true
		},
	},
	// seen in NVIDIA/nccl#1109
	{
		name: "four HCAs of the node in one subnet, and a strict filter", check: "container-routes", object: "the node's network HCA mlx5_0",
		plant: func(s *sick) {
			s.rails("10.244.0.8", "10.244.0.9", "10.244.0.10", "10.244.0.11")
			for i := range s.container().Links {
				s.container().Links[i].Strict, s.container().Links[i].Addresses = true, nil // without IPv6
			}
			s.container().OwnNetwork = false
			s.containers.Containers[1] = *s.container()
		},
	},
	// seen in k8snetworkplumbingwg/sriov-cni#348
	{
		name: "no provider for the vendor's driver", check: "container-provider", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			n := hcatest.RoCENode()
			for i := range n.HCAs {
				n.HCAs[i].Driver = "ionic"
			}
			s.files = n.Files().With(hcatest.Files{
				"sys/devices/pci0000:18/0000:18:00.0/infiniband_verbs/uverbs0/abi_version": "4\n",
				"usr/lib64/libibverbs/libionic-rdmav34.so":                                 "\x7fELF"})
			s.containers.Containers = s.containers.Containers[:1]
		},
	},
	{
		name: "an image without the provider", check: "container-provider", object: theTrainer + " HCA mlx5_0",
		plant: func(s *sick) {
			s.container().Providers = providers("rxe")
		},
	},
	{
		name: "no provider for a soft HCA, which can have any name", check: "container-provider", object: theTrainer + " HCA fabric0",
		plant: func(s *sick) {
			s.files = hcatest.Node{HCAs: []hcatest.HCA{{Name: "fabric0",
				Ports: []hcatest.Port{{LinkLayer: "Ethernet", Netdevs: []string{"eth0"}}}}}}.Files()
			s.container().HCAs, s.container().Providers = []string{"fabric0"}, providers("mlx5")
		},
	},
}

// toldOfContainers are what slows a container down, or may, and need not be a fault.
var toldOfContainers = []fault{
	// seen in NVIDIA/nccl#2013
	{
		name: "one subnet", check: "container-routes", object: theTrainer + " HCA mlx5_0", status: doctor.OK,
		plant: func(s *sick) { s.rails("10.244.0.8", "10.244.0.9") },
	},
	{
		name: "one default route", check: "container-routes", object: theTrainer, status: doctor.OK,
		plant: func(s *sick) {
			s.rails("10.1.0.8", "10.2.0.8")
			s.container().Links[0].Gateway = true
		},
	},
	// seen in NVIDIA/nccl#1405
	{
		name: "rails of IPv6 in one subnet", check: "container-routes", object: theTrainer + " HCA mlx5_0", status: doctor.OK,
		plant: func(s *sick) {
			s.rails("fd00:1148::8", "fd00:1148::9")
			s.container().Links[0].Strict, s.container().Links[1].Strict = true, true
		},
	},
	{
		name: "rails of IPv6 that no route joins", check: "container-routes", object: theTrainer, status: doctor.OK,
		plant: func(s *sick) { s.rails("fd00:1::8", "fd00:2::8") },
	},
	// seen in NVIDIA/nccl#2013, ROCm/rccl#1303
	{
		name: "rails that no route joins", check: "container-routes", object: theTrainer, status: doctor.OK,
		plant: func(s *sick) { s.rails("10.1.0.8", "10.2.0.8", "10.3.0.8") },
	},
	{
		name: "an unknown driver", check: "container-provider", object: theTrainer + " HCA mlx5_0", status: doctor.Unknown,
		plant: func(s *sick) { s.drivenBy("frobnicator", "3", "mlx5") },
	},
	// seen in SoftRoCE/rxe-dev#74, of erdma and efa instead
	{
		name: "an erdma of another ABI", check: "container-provider", object: theTrainer + " HCA mlx5_0", status: doctor.Unknown,
		plant: func(s *sick) { s.drivenBy("erdma", "2", "erdma") },
	},
	{
		name: "an EFA of another ABI", check: "container-provider", object: theTrainer + " HCA mlx5_0", status: doctor.Unknown,
		plant: func(s *sick) { s.drivenBy("efa", "2", "efa") },
	},
	// seen in sgl-project/sglang#16242
	{
		name: "Broadcom's own driver", check: "container-provider", object: theTrainer + " HCA mlx5_0", status: doctor.Unknown,
		plant: func(s *sick) { s.drivenBy("bnxt_en", "6", "bnxt_re") },
	},
	// seen in NVIDIA/nccl#769
	{
		name: "RoCE v1 alone", check: "container-netdev", object: theTrainer + " HCA mlx5_0", status: doctor.OK,
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			for _, gid := range []int{9, 10} {
				s.files[path.Dir(path.Dir(gidOf(0, gid)))+"/gid_attrs/types/"+strconv.Itoa(gid)] = "IB/RoCE v1\n"
			}
		},
	},
	// seen in NVIDIA/nccl#769
	{
		name: "a GID index that is link-local", check: "container-gid-index", object: theTrainer + " HCA mlx5_0", status: doctor.OK,
		plant: func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "9"}
		},
	},
	{
		name: "a GPU beside another CPU", check: "container-gpu", object: theTrainer, status: doctor.OK,
		plant: func(s *sick) {
			s.container().GPUs = []int{1}
			for i, numa := range []string{"0\n", "1\n"} {
				gpu := []string{"0000:17:00.0", "0000:ab:00.0"}[i]
				s.files["proc/driver/nvidia/gpus/"+gpu+"/information"] = fmt.Sprintf("Model: H100\nDevice Minor: \t %d\n", i)
				s.files["sys/bus/pci/devices/"+gpu+"/numa_node"] = numa
			}
		},
	},
	// seen in k8snetworkplumbingwg/sriov-cni#348
	{
		name: "a provider for another ABI", check: "container-provider", object: theTrainer + " HCA mlx5_0", status: doctor.Unknown,
		plant: func(s *sick) {
			s.files["sys/devices/pci0000:18/0000:18:00.0/infiniband_verbs/uverbs0/abi_version"] = "6\n"
		},
	},
	{
		name: "an image that does not answer", check: "container-provider", object: theTrainer, status: doctor.Unknown,
		plant: func(s *sick) {
			s.container().LibVerbs, s.container().Providers, s.container().Silent = "", nil, true
		},
	},
	{
		name: "a plugin that gives what authors name", check: "nri-rivals", object: "plugin device_injector", status: doctor.OK,
		plant: func(s *sick) {
			s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "device_injector", PID: 400, InContainer: true})
		},
	},
	{
		name: "a containerd that does not run", check: "memlock-source", object: theRuntime, status: doctor.Unknown,
		plant: func(s *sick) {
			s.plugin, s.runtime().Memlock, s.runtime().Handlers = agents.Plugin{}, nil, s.runtime().Handlers[1:]
			s.containers = node.Containers{}
		},
	},
}
