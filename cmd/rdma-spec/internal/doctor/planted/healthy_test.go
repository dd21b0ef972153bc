// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Nothing is wrong with nodes that are well, and nothing is unknown where everything is told.
func TestHealthyNodes(t *testing.T) {
	for name, alter := range map[string]func(s *sick){
		"as it should be": func(*sick) {},
		"a DaemonSet in an update": func(s *sick) {
			s.plugin.Processes = []agents.PluginProcess{
				{Name: "nri-rdma", PID: 200, InContainer: true, Handover: "/rdma-spec/handover/a.nri-rdma"},
				{Name: "nri-rdma", PID: 400, InContainer: true, Handover: "/rdma-spec/handover/a.nri-rdma"}}
		},
		"no plugin, but a base spec": func(s *sick) {
			s.plugin, s.containers = agents.Plugin{}, node.Containers{}
			s.runtime().NRI = runtime.NRI{Off: "disable = true", Socket: "/var/run/nri/nri.sock"}
		},
		"no HCA and no plugin": func(s *sick) {
			s.plugin, s.containers, s.files = agents.Plugin{}, node.Containers{}, hcatest.Node{NoRDMACM: true}.Files()
			s.runtime().Handlers = nil
		},
		"an unlimited daemon": func(s *sick) {
			s.plugin, s.containers = agents.Plugin{}, node.Containers{}
			s.runtime().Handlers, s.runtime().Memlock = nil, bytesOf(unlimited)
		},
		"an old containerd with a base spec": func(s *sick) {
			s.plugin, s.containers = agents.Plugin{}, node.Containers{}
			s.runtime().Version = "1.6.20"
		},
		"Docker's containerd beside it": func(s *sick) {
			s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd", Config: "/run/docker/c.toml",
				PID: 101, Known: true, CRIDisabled: true, NRI: runtime.NRI{Off: "NRI is in disabled_plugins"}})
		},
		"a second containerd without pods": func(s *sick) {
			s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd", Version: "2.4.2",
				Socket: "/run/second/c.sock", Config: "/run/second/c.toml", PID: 101, Serves: true,
				Known: true, NRI: s.runtime().NRI})
			s.configured.Features = []goal.Feature{featureOf("handler rdma", "runc", goal.Kept)}
		},
		"CRI-O beside a containerd that is only installed": func(s *sick) {
			crio := *s.runtime()
			crio.Name, crio.Version, crio.Socket, crio.Handlers = "cri-o", "1.34.0", "/run/crio/crio.sock", nil
			s.runtimes.Runtimes = []runtime.Runtime{crio, {Name: "containerd", Version: "1.7.2",
				Config: "/etc/containerd/config.toml", Known: true, Handlers: []runtime.Handler{{Name: "runc", Program: "runc"}},
				NRI: runtime.NRI{Off: "disable = true"}}}
		},
		"no runtime and no kubelet": func(s *sick) {
			*s = sick{files: hcatest.RoCENode().Files(), unanswered: []string{"listing.json"}}
		},
		"a runtime that may not raise limits, and nothing gives more": func(s *sick) {
			s.plugin, s.containers, s.files = agents.Plugin{}, node.Containers{}, hcatest.Node{NoRDMACM: true}.Files()
			s.runtime().Handlers, s.runtime().Startable = nil, bytesOf(8<<20)
		},
		"a sandboxed handler with a low memlock beside an unlimited daemon": func(s *sick) {
			s.plugin, s.containers = agents.Plugin{}, node.Containers{}
			s.runtime().Handlers[0].Sandboxed, s.runtime().Handlers[0].Memlock = true, bytesOf(64<<10)
			s.runtime().Memlock = bytesOf(unlimited)
		},
		"what was configured is kept": func(s *sick) {
			s.configured.Features = []goal.Feature{featureOf("nri", "", goal.Kept), {Feature: "plugin", State: goal.Kept},
				featureOf("handler rdma", "runc", goal.Kept)}
		},
		"a finite memlock that the policy gives": func(s *sick) {
			s.container().Memlock, s.container().Wanted, s.container().IPCLock = both(16<<30),
				&spec.Grant{Memlock: 16 << 30}, yes(false)
		},
		"a default handler without its base spec beside one that has one": func(s *sick) {
			*s.asDefault() = runtime.Handler{Name: "nvidia", Program: "runc"}
			s.runtime().Handlers[1].Memlock = bytesOf(unlimited)
			s.configured.Features = []goal.Feature{featureOf("handler nvidia", "nvidia", goal.Lost)}
		},
		"a privileged container with a hostPath": func(s *sick) {
			s.container().AllDevices, s.container().HostPaths = true, []string{"/dev/infiniband"}
		},
		"a port without a cable, of an HCA that a device plugin gives to all pods": func(s *sick) {
			hcas := hcatest.RoCENode()
			hcas.HCAs[1].Ports[0] = hcas.HCAs[1].Ports[0].Down()
			s.files, s.container().HCAs = hcas.Files(), []string{"mlx5_0", "mlx5_1"}
		},
		"a kubelet elsewhere, and no HCA": func(s *sick) {
			s.kubelet.Root, s.files = "/var/lib/k0s/kubelet", hcatest.Node{NoRDMACM: true}.Files()
			s.containers, s.cdi = node.Containers{}, cdi.Files{}
		},
		"a macvlan of the HCA": func(s *sick) { s.rails("10.244.0.8") },
		"a privileged container that uses one of the HCAs": func(s *sick) {
			s.rails("10.244.0.8")
			c := s.container()
			c.AllDevices, c.HCAs = true, []string{"mlx5_0", "mlx5_1"}
			c.Env = cri.Env{"NCCL_IB_GID_INDEX": "10"}
		},
		"a GID index of its own": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "10"}
		},
		"a GID index that NCCL is to choose": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "-1"}
		},
		"variables that name what the container has": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_HCA": "mlx5_7,mlx5_0:1", "NCCL_SOCKET_IFNAME": "^lo,docker",
				"UCX_NET_DEVICES": "mlx5_0:1"}
		},
		"an HCA without an address that NCCL_IB_HCA leaves out": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().HCAs, s.container().Env = []string{"mlx5_0", "mlx5_1"}, cri.Env{"NCCL_IB_HCA": "mlx5_0"}
		},
		"variables with beginnings of names": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "net", "UCX_NET_DEVICES": "all"}
		},
		"variables that leave out": func(s *sick) {
			s.rails("10.244.0.8")
			s.container().Env = cri.Env{"NCCL_IB_HCA": "^=mlx5_1", "NCCL_SOCKET_IFNAME": "=net1", "UCX_NET_DEVICES": "net1"}
		},
		"two HCAs in one subnet with policy routing": func(s *sick) {
			s.rails("10.244.0.8", "10.244.0.9")
			s.container().Links[0].Strict, s.container().Links[1].Strict, s.container().PolicyRouting = true, true, true
		},
		"two HCAs in one subnet and a loose filter": func(s *sick) { s.rails("10.244.0.8", "10.244.0.9") },
		// seen in NVIDIA/nccl-tests#185
		"one default route": func(s *sick) {
			s.rails("10.1.0.8", "10.2.0.8", "10.3.0.8", "10.4.0.8")
			s.container().Links[0].Gateway = true
		},
		// seen in ROCm/rccl#1303
		"rails with gateways": func(s *sick) {
			s.rails("10.1.0.8", "10.2.0.8", "10.3.0.8", "10.4.0.8")
			for i := range s.container().Links {
				s.container().Links[i].Gateway, s.container().Links[i].Strict = true, true
			}
		},
		"rails in one subnet, with rules for each": func(s *sick) {
			s.rails("10.244.0.8", "10.244.0.9", "10.244.0.10")
			for i := range s.container().Links {
				s.container().Links[i].Strict, s.container().Links[i].Addresses = true, nil
			}
			s.container().PolicyRouting = true
		},
		"exclusive mode, and pods in the node's network": func(s *sick) {
			s.files = hcatest.RoCENode().Files().With(hcatest.Files{"sys/module/ib_core/parameters/netns_mode": "N\n"})
		},
		"a Slurm node at rest": func(s *sick) {
			c := s.container()
			c.Namespace, c.Pod, c.RDMA, c.Uses, c.AllDevices, c.Wanted = "slurm", "slurmd", false, true, true, nil
			c.Idle = node.Registering{PID: 501, User: 0, Registers: bytesOf(unlimited)}
			s.containers.Others, s.containers.Containers = s.containers.Containers[:1], nil
		},
		"a vendor's driver that a program has opened": func(s *sick) {
			s.files["sys/devices/pci0000:18/0000:18:00.0/infiniband_verbs/uverbs0/abi_version"] = "6\n"
			s.container().Providers, s.container().Opened = providers("rxe"), []string{"uverbs0"}
			s.containers.Containers = s.containers.Containers[:1]
		},
		"the kernel's own driver of Broadcom": func(s *sick) { s.drivenBy("bnxt_en", "1", "bnxt_re") },
		// seen in linux-rdma/rdma-core#1013
		"an X722 with the provider that irdma replaced": func(s *sick) { s.drivenBy("i40e", "5", "i40iw") },
		"an IPU, whose driver is idpf":                  func(s *sick) { s.drivenBy("idpf", "5", "irdma") },
		"Kunpeng's hns, whose provider takes any ABI":   func(s *sick) { s.drivenBy("hns3", "2", "hns") },
		"Alibaba's erdma":                               func(s *sick) { s.drivenBy("erdma", "1", "erdma") },
		"a Slurm node whose login pod has low limits, and nothing runs": func(s *sick) {
			c := s.container()
			c.Namespace, c.Pod, c.RDMA, c.HCAs, c.Wanted = "slurm", "login", false, nil, nil
			c.Memlock, c.Registers = both(8<<20), bytesOf(8<<20)
			s.containers.Containers = s.containers.Containers[1:]
		},
		"containers with GPUs by a hook": func(s *sick) {
			s.container().Env, s.runtime().DefaultHandler = cri.Env{"NVIDIA_VISIBLE_DEVICES": "all"}, "nvidia"
			s.runtime().Handlers = append(s.runtime().Handlers, runtime.Handler{Name: "nvidia", Program: "nvidia-container-runtime"})
		},
		"CDI for Docker": func(s *sick) {
			s.kubelet, s.cdi.Docker = agents.Kubelet{}, &cdi.Docker{Version: "28.2.0", Dirs: []string{"/etc/cdi"}}
		},
		"CDI off, and no CDI files": func(s *sick) {
			s.runtime().CDIOff, s.cdi.Files, s.cdi.Docker = true, nil, &cdi.Docker{Version: "27.0.0"}
		},
		"resources whose names have RDMA's words in them": func(s *sick) {
			s.kubelet.Allocatable["example.com/coprocessor"], s.kubelet.Allocatable["example.com/healthcare-gpu"] = 0, 0
		},
		"a kubelet elsewhere, with a link": func(s *sick) {
			s.kubelet.Root = "/data/kubelet"
			s.files["var/lib/kubelet/device-plugins/kubelet.sock"] = ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			alter(s)
			for _, f := range s.look(t, software()) {
				if f.Status == doctor.Wrong || f.Status == doctor.Skipped || f.Status == doctor.Unknown {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// The plugin's version is told, and that of the tool where it is another one.
func TestPluginRegistered_version(t *testing.T) {
	for version, want := range map[string]string{
		"0.9": "nri-rdma 0.9 is running with the policy from /etc/rdma-spec/config.yaml.",
		"0.8": "nri-rdma 0.8 is running with the policy from /etc/rdma-spec/config.yaml; the " +
			"version of rdma-spec is 0.9.",
	} {
		s := healthy()
		s.plugin.Policy.Version = version
		findings := s.look(t, runtimes.Checks())
		i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == "plugin-registered" })
		if findings[i].Status != doctor.OK || findings[i].Text != want {
			t.Errorf("%s: %+v", version, findings[i])
		}
	}
}

// What cannot be known is unknown, and no fault.
func TestRun_unknownIsNoFault(t *testing.T) {
	for name, alter := range map[string]func(s *sick){
		"no answers": func(s *sick) {
			s.unanswered = []string{"runtimes.json", "plugin.json", "listing.json", "kubelet.json", "configured.json"}
		},
		"no answer of runtimes": func(s *sick) { s.unanswered = []string{"runtimes.json"} },
		"no answer of plugins":  func(s *sick) { s.unanswered = []string{"plugin.json"} },
		"an unread configuration": func(s *sick) {
			*s.runtime() = runtime.Runtime{Name: "containerd", PID: 100, Socket: "/run/containerd/containerd.sock", Serves: true}
		},
		"a runtime that is late": func(s *sick) { s.runtime().Serves, s.runtime().Late = false, true },
		"a kubelet that is late": func(s *sick) { s.kubelet.Late, s.kubelet.Error = true, "context deadline exceeded" },
		"a newer crun":           func(s *sick) { s.runtime().Handlers[1].Program = "crun 1.15" },
		"no policy":              func(s *sick) { s.containers.Unjudged = "no policy is in force" },
		"a container unread": func(s *sick) {
			s.container().State, s.container().Known, s.container().Registers = "unknown", false, nil
		},
		"an image unlike others": func(s *sick) { s.container().LibVerbs, s.container().Providers = "", nil },
		"a kubelet whose directory is not mounted": func(s *sick) {
			s.kubelet.DevicePlugins, s.kubelet.NotMounted = false, true
		},
		"a kubelet elsewhere whose directory is not mounted": func(s *sick) {
			s.kubelet.Root, s.kubelet.DevicePlugins, s.kubelet.PodResources,
				s.kubelet.NotMounted = "/var/lib/k0s/kubelet", false, false, true
		},
		"an image that is slow": func(s *sick) {
			s.container().LibVerbs, s.container().Providers, s.container().Silent = "", nil, true
		},
		"interfaces that are not known": func(s *sick) {
			s.container().OwnNetwork, s.container().Silent = true, true
		},
		"a driver that lists no GIDs": func(s *sick) {
			s.container().OwnNetwork = true
			maps.DeleteFunc(s.files, func(name, _ string) bool { return strings.Contains(name, "/gids/") })
		},
		"an interface of the HCA without an IP address, and huge pages": func(s *sick) {
			s.container().OwnNetwork, s.container().LinkLocal = true, addresses("fe80::202:2ff:fe02:0")
			s.container().HugePages = true
		},
		"two pods with one address, by HCAs whose networks may be two": func(s *sick) {
			s.rails("10.244.0.8", "10.244.0.8")
			other := *s.container()
			other.Pod, other.HCAs, s.container().HCAs = "train-1", other.HCAs[1:], other.HCAs[:1]
			s.containers.Containers = []node.Container{*s.container(), other}
		},
		"CDI off beside Podman": func(s *sick) { s.runtime().CDIOff, s.cdi.Podman = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			alter(s)
			known := true
			for _, f := range s.look(t, software()) {
				known = known && f.Status != doctor.Unknown
				if f.Status == doctor.Wrong {
					t.Errorf("%+v", f)
				}
			}
			if known {
				t.Error("nothing is unknown")
			}
		})
	}
}
