// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

const (
	theRuntime = "runtime /run/containerd/containerd.sock"
	theTrainer = "container ml/train-0 worker"
)

func addresses(all ...string) (parsed []netip.Addr) {
	for _, address := range all {
		parsed = append(parsed, netip.MustParseAddr(address))
	}
	return parsed
}

// asDefault makes the first handler the default one, by another name.
func (s *sick) asDefault() *runtime.Handler {
	s.runtime().DefaultHandler, s.runtime().Handlers[0].Name = "nvidia", "nvidia"
	return &s.runtime().Handlers[0]
}

// sriovFile is a CDI file as the SR-IOV device plugin writes it.
var sriovFile = cdi.Found{Path: "/var/run/cdi/sriov-dp.yaml", Kind: "nvidia.com/net-pci", Devices: []cdi.Device{
	{Name: "nvidia.com/net-pci=0000:18:00.2", Nodes: []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}}}}

// someday is when a daemon of the fixtures was started.
var someday = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// planted are faults, each with the one check that finds it, and the object. TestCauseOfLowMemlock has more of
// container-memlock.
var planted = map[string]struct {
	plant         func(s *sick)
	check, object string
}{
	"a configuration that does not parse": {func(s *sick) {
		r := s.runtime()
		r.ConfigError, r.Known, r.Handlers, r.NRI = "toml: line 3: expected =", false, nil,
			runtime.NRI{Socket: r.NRI.Socket, SocketExists: true}
	}, "runtime-config", theRuntime},
	"a drop-in that containerd 1.7 does not merge": {func(s *sick) {
		s.runtime().Ignored = []runtime.Ignored{{File: "/etc/containerd/config.toml", Reason: "containerd 1.7.35 does not merge the " +
			"section io.containerd.grpc.v1.cri of /etc/containerd/conf.d/x.toml into it, but replaces it, and sandbox_image is lost",
			Fix: "write what /etc/containerd/conf.d/x.toml is to keep of /etc/containerd/config.toml into it, or remove the section there"}}
	}, "runtime-config", theRuntime},
	"a handler without a runtime_type": {func(s *sick) {
		s.runtime().Handlers[0].NoType, s.runtime().Handlers[0].File = true, "/etc/containerd/conf.d/rdma.toml"
	}, "handler-type", theRuntime + " handler rdma"},
	"CRI is not loaded": {func(s *sick) {
		s.runtime().Serves, s.runtime().Error = false, "it does not serve CRI"
	}, "cri-serves", theRuntime},
	"CRI is disabled": {func(s *sick) {
		s.runtime().Serves, s.runtime().CRIDisabled = false, true
	}, "cri-serves", theRuntime},
	"containerd 1.7.5": {func(s *sick) {
		s.runtime().Version, s.runtime().Handlers = "1.7.5", s.runtime().Handlers[1:]
	}, "runtime-rlimits", theRuntime},
	"containerd 1.7.5 whose default handler is NVIDIA's": {func(s *sick) {
		s.runtime().Version, s.runtime().Handlers, s.runtime().DefaultHandler = "1.7.5",
			[]runtime.Handler{{Name: "nvidia"}}, "nvidia"
	}, "runtime-rlimits", theRuntime},
	"a default handler with 1024 files": {func(s *sick) {
		s.asDefault().CapsFiles = true
	}, "base-spec-files", theRuntime + " handler nvidia"},
	"a default handler with a low memlock": {func(s *sick) {
		s.plugin, s.asDefault().Memlock, s.containers = agents.Plugin{}, bytesOf(64<<10), node.Containers{}
	}, "base-spec-memlock", theRuntime + " handler nvidia"},
	"another tool removed the base spec of the default handler": {func(s *sick) {
		s.asDefault().BaseSpec = ""
		s.runtime().Handlers[0].Memlock = nil
		s.configured.Features = []goal.Feature{featureOf("handler nvidia", "nvidia", goal.Lost)}
	}, "configuration-kept", theRuntime + " handler nvidia"},
	"CRI-O 1.28": {func(s *sick) {
		*s.runtime() = runtime.Runtime{Name: "cri-o", Version: "1.28.4", PID: 100, Socket: "/run/crio/crio.sock",
			Serves: true, Known: true, NRI: s.runtime().NRI}
	}, "runtime-rlimits", "runtime /run/crio/crio.sock"},
	"a CDI file of another boot": {func(s *sick) {
		s.cdi.Files[0].Devices[0].Problem = "it has uverbs1 now, and the file has uverbs0"
	}, "cdi-files", "CDI file /etc/cdi/rdma.yaml"},
	"a CDI file whose hook is gone": {func(s *sick) {
		s.cdi.Files[0].Problem = "the hook /usr/local/bin/rdma-hook does not exist"
	}, "cdi-files", "CDI file /etc/cdi/rdma.yaml"},
	"nothing gives memlock, and no RDMA container runs yet": {func(s *sick) {
		s.plugin, s.runtime().Handlers, s.containers = agents.Plugin{}, s.runtime().Handlers[1:], node.Containers{}
		s.runtime().NRI = runtime.NRI{Off: "disable = true"}
	}, "memlock-source", theRuntime},
	"nothing gives memlock beside a soft HCA": {func(s *sick) {
		s.plugin, s.runtime().Handlers, s.files = agents.Plugin{}, s.runtime().Handlers[1:], hcatest.SoftRoCENode().Files()
		s.containers, s.kubelet, s.cdi = node.Containers{}, agents.Kubelet{}, cdi.Files{}
	}, "memlock-source", theRuntime},
	"a runtime that may not raise limits": {func(s *sick) {
		s.runtime().Startable = bytesOf(8 << 20)
	}, "runtime-rlimits", theRuntime},
	"only a sandboxed handler gives memlock": {func(s *sick) {
		s.plugin, s.containers, s.runtime().Handlers[0].Sandboxed = agents.Plugin{}, node.Containers{}, true
	}, "memlock-source", theRuntime},
	"only a sandboxed handler gives memlock, and it is the default one of an old containerd": {func(s *sick) {
		s.plugin, s.containers, s.runtime().Version = agents.Plugin{}, node.Containers{}, "1.7.5"
		s.asDefault().Sandboxed = true
	}, "runtime-rlimits", theRuntime},
	"a base spec that is missing": {func(s *sick) {
		s.runtime().Handlers[0] = runtime.Handler{Name: "rdma", BaseSpec: "/etc/containerd/rdma.json",
			Error: "no such file or directory"}
		s.runtime().Serves = false
	}, "base-spec", theRuntime},
	"a base spec with 1024 files": {func(s *sick) {
		s.runtime().Handlers[0].CapsFiles = true
	}, "base-spec-files", theRuntime + " handler rdma"},
	"a base spec with 1024 files, written by configure": {func(s *sick) {
		s.runtime().Handlers[0].CapsFiles, s.runtime().Handlers[0].BaseSpec = true, "/etc/containerd/rdma-spec-rdma.json"
	}, "base-spec-files", theRuntime + " handler rdma"},
	"a base spec with a low memlock": {func(s *sick) {
		s.plugin, s.runtime().Handlers[0].Memlock = agents.Plugin{}, bytesOf(64<<10)
	}, "base-spec-memlock", theRuntime + " handler rdma"},
	"a base spec of a version that crun refuses": {func(s *sick) {
		s.runtime().Handlers[0].OCIVersion = "1.3.0"
	}, "oci-version", theRuntime + " handler rdma"},
	"a default spec of a version that crun refuses": {func(s *sick) {
		s.runtime().Handlers[1].Program = "crun 1.8.1"
	}, "oci-version", theRuntime + " handler runc"},
	"NRI is off": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.Off, s.runtime().NRI.SocketExists, s.plugin.Policy = false, "disable = true",
			false, agents.PolicyInForce{}
	}, "nri-on", theRuntime},
	"NRI is off beside another containerd": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.Off = false, "disable = true"
		s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd",
			Config: "/run/docker/containerd.toml", PID: 101, Known: true, CRIDisabled: true})
	}, "nri-on", theRuntime},
	"NRI is off since another tool rewrote the file": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.SocketExists, s.plugin.Policy = false, false, agents.PolicyInForce{}
		s.configured.Features = []goal.Feature{featureOf("nri", "", goal.Lost)}
	}, "configuration-kept", theRuntime},
	"another tool removed a handler": {func(s *sick) {
		s.runtime().Handlers = s.runtime().Handlers[1:]
		s.configured.Features = []goal.Feature{featureOf("handler rdma", "runc", goal.Lost)}
	}, "configuration-kept", theRuntime + " handler rdma"},
	"another tool removed a base spec": {func(s *sick) {
		s.runtime().Handlers[0].BaseSpec = ""
		s.configured.Features = []goal.Feature{featureOf("handler rdma", "rdma", goal.Lost)}
	}, "configuration-kept", theRuntime + " handler rdma"},
	"a handler that is not like its model any longer": {func(s *sick) {
		s.configured.Features = []goal.Feature{featureOf("handler rdma", "runc", goal.Stale, "plugins.cri.rdma.sandboxer")}
	}, "configuration-kept", theRuntime + " handler rdma"},
	"a drop-in that takes the CRI section away": {func(s *sick) {
		s.configured.Features = []goal.Feature{featureOf("nri", "", goal.Kept), featureOf("handler rdma", "runc", goal.Kept)}
		s.configured.SideEffects = []goal.SideEffect{{Config: "/etc/containerd/config.toml", Files: []string{"/etc/containerd/conf.d/a.toml"},
			Differs: []string{"a", "b", "c", "d", "e"}}}
	}, "configuration-kept", theRuntime},
	"the drop-in of a unit is gone": {func(s *sick) {
		s.configured.Features = []goal.Feature{{Feature: "limits", State: goal.Lost, Differs: []string{"/etc/x.conf"}}}
	}, "configuration-kept", ""},
	"the socket of NRI is gone": {func(s *sick) {
		s.runtime().NRI.SocketExists, s.plugin.Policy.Lives = false, false
	}, "nri-socket", theRuntime},
	"two containerds, and the other one has NRI's socket": {func(s *sick) {
		s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd", Version: "2.4.2",
			Socket: "/run/second/c.sock", Config: "/run/second/c.toml", PID: 101, Serves: true,
			Known: true, NRI: s.runtime().NRI})
		s.runtimes.Runtimes[0].NRI.Listener, s.runtimes.Runtimes[1].NRI.Listener = 101, 101
	}, "nri-owner", theRuntime},
	"plugins are required globally": {func(s *sick) {
		s.runtime().NRI.Required = []string{"image-policy", "rdma"}
	}, "nri-required-plugins", theRuntime},
	"a short timeout": {func(s *sick) {
		s.runtime().NRI.RequestTimeout = 100 * time.Millisecond
	}, "nri-timeouts", theRuntime},
	"ulimit-adjuster is launched": {func(s *sick) {
		s.files["opt/nri/plugins/10-ulimit-adjuster"] = "#!"
		s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "ulimit-adjuster", PID: 400})
	}, "nri-rivals", "plugin ulimit-adjuster"},
	"device-injector runs": {func(s *sick) {
		s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "device-injector", PID: 400})
	}, "nri-rivals", "plugin device-injector"},
	"the plugin runs twice": {func(s *sick) {
		s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "nri-rdma", PID: 400})
	}, "nri-rivals", "plugin nri-rdma"},
	"two DaemonSets, and an update of one": {func(s *sick) {
		s.plugin.Processes = []agents.PluginProcess{{Name: "nri-rdma", PID: 200, Handover: "/rdma-spec/handover/a.nri-rdma"},
			{Name: "nri-rdma", PID: 400, Handover: "/rdma-spec/handover/a.nri-rdma"},
			{Name: "nri-rdma", PID: 500, Handover: "/rdma-spec/handover/b.nri-rdma"}}
	}, "nri-rivals", "plugin nri-rdma"},
	"the service is down": {func(s *sick) {
		s.containers.Unjudged = "no policy is in force"
		s.plugin.Processes, s.plugin.Policy.Lives = s.plugin.Processes[1:], false
	}, "plugin-runs", ""},
	"the launched plugin is down": {func(s *sick) {
		s.plugin = agents.Plugin{Launched: "/opt/nri/plugins/90-rdma"}
	}, "plugin-runs", ""},
	"the plugin is gone": {func(s *sick) {
		s.plugin = agents.Plugin{Policy: agents.PolicyInForce{Exists: true}}
	}, "plugin-runs", ""},
	"the plugin's configuration is garbage": {func(s *sick) {
		s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, agents.PolicyInForce{}
	}, "plugin-config", ""},
	"the DaemonSet's configuration is garbage": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, agents.PolicyInForce{}
	}, "plugin-config", ""},
	"the DaemonSet's plugin is not registered": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Policy.Lives = false
	}, "plugin-registered", theRuntime},
	"the plugin is not registered": {func(s *sick) {
		s.plugin.Policy.Lives = false
	}, "plugin-registered", theRuntime},
	"the policy in force is garbage": {func(s *sick) {
		s.plugin.Policy = agents.PolicyInForce{Exists: true,
			Error: "/run/rdma-spec/policy.yaml cannot be read as a policy: it is empty"}
		s.containers.Unjudged = "no policy is in force"
	}, "policy-readable", ""},
	"the policy in force of the DaemonSet is garbage": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Policy = agents.PolicyInForce{Exists: true,
			Error: "/run/rdma-spec/policy.yaml cannot be read as a policy: it is empty"}
		s.containers.Unjudged = "no policy is in force"
	}, "policy-readable", ""},
	"the DaemonSet's plugin is not registered, and nobody lists its pod": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Policy.Lives, s.unanswered = false, []string{"listing.json"}
	}, "plugin-registered", theRuntime},
	"the plugin was upgraded": {func(s *sick) {
		s.plugin.Processes[0].Replaced, s.plugin.Processes[0].Started = true, someday
	}, "plugin-current", ""},
	"the validator was upgraded": {func(s *sick) {
		validator := s.plugin.Processes[0]
		validator.PID, validator.Validator, validator.Replaced, validator.Started = 201, true, true, someday
		s.plugin.Processes = append(s.plugin.Processes, validator)
	}, "plugin-current", ""},
	"a container below policy": {func(s *sick) {
		c := s.container()
		c.State, c.Memlock, c.Registers, c.Fix.Action = node.StateBelow, both(8<<20), bytesOf(8<<20), node.Repair
		c.Problems = []string{"memlock is 8Mi, the policy gives unlimited"}
	}, "container-memlock", theTrainer},
	"a user without the IPC_LOCK of its pod": {func(s *sick) {
		c := s.container()
		c.State, c.Memlock, c.Registers, c.IPCLock, c.Fix.Action = node.StateBelow, both(8<<20), bytesOf(8<<20),
			yes(false), node.Repair
	}, "container-ipc-lock", theTrainer},
	"a container with few open files": {func(s *sick) {
		s.container().OpenFiles = both(1024)
	}, "container-files", theTrainer},
	"an HCA that was made anew": {func(s *sick) {
		s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "old", Container: "main"},
			Inside: process.Inside{User: -1}, Stale: []string{"/dev/infiniband/uverbs0 is 231:200, which no longer belongs to an HCA"}}}
	}, "container-hca", "container ml/old main"},
	"a device plugin that uses CDI, which is off": {func(s *sick) {
		s.runtime().CDIOff, s.cdi.Files[0] = true, sriovFile
		s.cdi.Podman = true
	}, "cdi-on", theRuntime},
	"a device plugin's CDI file of another boot": {func(s *sick) {
		s.cdi.Files = append(s.cdi.Files, sriovFile)
		s.cdi.Files[2].Devices = []cdi.Device{{Name: "nvidia.com/net-pci=0000:18:00.2",
			Nodes: []string{"/dev/infiniband/uverbs7"}, Problem: "this node has no /dev/infiniband/uverbs7"}}
	}, "cdi-files", "CDI file /var/run/cdi/sriov-dp.yaml"},
	"two pods with one address": {func(s *sick) {
		s.rails("10.244.0.8")
		other := *s.container()
		other.Pod = "train-1"
		s.containers.Containers = []node.Container{*s.container(), other}
	}, "container-netdev", "container ml/train-1 worker HCA mlx5_0"},
	"HCAs that NVIDIA's container runtime added after NRI": {func(s *sick) {
		c := s.container()
		c.RDMA, c.State, c.Memlock, c.Registers, c.Wanted = false, node.StateUnseen, both(8<<20), bytesOf(8<<20), nil
		c.Fix.Text = `list its runtime handler "nvidia" in optIn.mofedRuntimeHandlers, and recreate the pod`
		c.Problems = []string{"NVIDIA's container runtime added its HCAs after NRI (NVIDIA_MOFED=enabled), so the plugin " +
			"did not see them: " + c.Fix.Text}
	}, "container-unseen", theTrainer},
	"a container that would be refused": {func(s *sick) {
		s.container().State, s.container().Problems = "refused",
			[]string{`a new container would be refused: namespace "ml" may not opt in by annotation`}
	}, "container-refused", theTrainer},
	"a container without the HCA of its annotation": {func(s *sick) {
		s.container().State, s.container().HCAs = "below", nil
		s.container().Wanted = &spec.Grant{Memlock: unlimited, Devices: []hca.Device{{}}}
		s.container().Lacks = spec.Grant{Devices: []hca.Device{{}}}
		s.container().Problems = []string{"it holds no HCA, the policy gives mlx5_0: recreate the pod"}
		s.container().Fix.Text = "recreate the pod"
	}, "container-hca", theTrainer},
	// seen in k8snetworkplumbingwg/sriov-network-device-plugin#123
	"a function with an HCA, no verbs device, and DPDK": {func(s *sick) {
		s.containers.Others = []node.Container{{Report: node.Report{Namespace: "ml", Pod: "dpdk", Container: "main"},
			Inside:    process.Inside{User: -1, HugePages: true},
			Functions: []string{"PCI function 0000:18:00.2 (mellanox.com/sriov), HCA mlx5_5"}}}
	}, "container-hca", "container ml/dpdk main"},
	"an HCA that manages NVSwitches": {func(s *sick) {
		i := slices.IndexFunc(healthyNodes, func(k known) bool { return k.name == b200NVSwitches })
		s.files, s.container().HCAs = healthyNodes[i].node.Files(), []string{"mlx5_0", "mlx5_8"}
	}, "container-hca", theTrainer + " HCA mlx5_8"},
	// seen in NVIDIA/nccl#451
	"an Ethernet HCA that came along with those of InfiniBand": {func(s *sick) {
		s.files = nodeOf(rails(ocp, 0, 7, ib(ndr)), rails(connectX, 7, 1, eth(edr))).Files()
		s.container().HCAs = nil
		for i := range 8 {
			s.container().HCAs = append(s.container().HCAs, fmt.Sprintf("mlx5_%d", i))
		}
		s.container().OwnNetwork, s.container().Addresses = true, addresses("10.244.0.7")
	}, "container-netdev", theTrainer + " HCA mlx5_7"},
	"a container with a port that is down": {func(s *sick) {
		node := hcatest.RoCENode()
		node.HCAs[0].Ports[0] = node.HCAs[0].Ports[0].Down()
		s.files = node.Files()
	}, "container-port", "HCA mlx5_0 port 1"},
	// seen in Mellanox/network-operator#249
	"a virtual function that the subnet manager does not serve": {func(s *sick) {
		s.files, s.container().HCAs = virtualInfiniBand().With(hcatest.Files{
			hcatest.Folder("mlx5_2", "0000:00:00.2") + "/ports/1/state": "1: DOWN\n"}), []string{"mlx5_2"}
	}, "container-port", "HCA mlx5_2 port 1"},
	// seen in k8snetworkplumbingwg/sriov-network-operator#382
	"a virtual function whose link is off": {func(s *sick) {
		s.files, s.container().HCAs = virtualInfiniBand().With(hcatest.Files{
			hcatest.Folder("mlx5_2", "0000:00:00.2") + "/ports/1/state":      "1: DOWN\n",
			hcatest.Folder("mlx5_2", "0000:00:00.2") + "/ports/1/phys_state": "3: Disabled\n"}), []string{"mlx5_2"}
	}, "container-port", "HCA mlx5_2 port 1"},
	"a virtual function whose representor is off": {func(s *sick) {
		n := hcatest.Many(4)
		n.HCAs[2].Ports[0] = n.HCAs[2].Ports[0].Down()
		s.files, s.container().HCAs = n.Files().With(hcatest.Files{
			"sys/devices/pci0000:00/0000:00:00.0/net/eth0_0/phys_port_name": "pf0vf0\n",
			"sys/devices/pci0000:00/0000:00:00.0/net/eth0_1/phys_port_name": "pf0vf1\n"}), []string{"mlx5_2"}
	}, "container-port", "HCA mlx5_2 port 1"},
	"a hostPath and no device": {func(s *sick) {
		s.containers.Containers = append(s.containers.Containers, node.Container{Report: node.Report{Namespace: "ml",
			Pod: "efa-0", Container: "worker", State: "ok"}, Inside: process.Inside{HostPaths: []string{"/dev/infiniband"}}})
	}, "container-hostpath", "container ml/efa-0 worker"},
	"a hostPath beside the device plugin": {func(s *sick) {
		s.container().HostPaths = []string{"/dev/infiniband"}
	}, "container-hostpath", theTrainer},
	"an HCA of the node in exclusive mode": {func(s *sick) {
		*s = *onNetwork(hcatest.ExclusiveFiles("mlx5_0", "mlx5_2"), "mlx5_0")
	}, "container-hca", theTrainer},
	// seen in Mellanox/k8s-rdma-shared-dev-plugin#72, #112
	"no interface of the HCA": {func(s *sick) {
		s.container().OwnNetwork, s.container().Addresses = true, addresses("10.244.0.7")
	}, "container-netdev", theTrainer + " HCA mlx5_0"},
	"no address but that of lo": {func(s *sick) {
		s.container().OwnNetwork = true
	}, "container-netdev", theTrainer + " HCA mlx5_0"},
	"CDI off in containerd": {func(s *sick) {
		s.runtime().CDIOff = true
	}, "cdi-on", theRuntime},
	"a containerd that reads other CDI files": {func(s *sick) {
		s.runtime().CDIDirs = []string{"/opt/cdi", "/run/cdi/"}
	}, "cdi-on", theRuntime},
	"Docker before CDI": {func(s *sick) {
		s.kubelet, s.cdi.Docker = agents.Kubelet{}, &cdi.Docker{Version: "20.10.24+dfsg1"}
	}, "cdi-on", "runtime docker"},
	"CDI off in Docker": {func(s *sick) {
		s.kubelet, s.cdi.Docker = agents.Kubelet{}, &cdi.Docker{Version: "28.1.1"}
	}, "cdi-on", "runtime docker"},
	// seen in NVIDIA/nccl#1573, k8snetworkplumbingwg/multus-cni#1100
	"a GID index of another pod's interface": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "11"}
		s.files[gidOf(0, 11)] = "0000:0000:0000:0000:0000:ffff:0af4:0009\n"
	}, "container-gid-index", theTrainer + " HCA mlx5_0"},
	"a GID index of another pod's interface, on the node's network": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().OwnNetwork, s.container().Env = false, cri.Env{"NCCL_IB_GID_INDEX": "11"}
		s.files[gidOf(0, 11)] = "0000:0000:0000:0000:0000:ffff:0af4:0009\n"
	}, "container-gid-index", theTrainer + " HCA mlx5_0"},
	"a GID index that the HCA does not have": {func(s *sick) {
		s.container().Env = cri.Env{"NCCL_IB_GID_INDEX": "250"}
	}, "container-gid-index", theTrainer + " HCA mlx5_0"},
	// seen in NVIDIA/nccl#769
	"an interface of the HCA without an IP address": {func(s *sick) {
		s.container().OwnNetwork, s.container().LinkLocal = true, addresses("fe80::202:2ff:fe02:0")
	}, "container-netdev", theTrainer + " HCA mlx5_0"},
	"no address of the second HCA": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().HCAs = []string{"mlx5_0", "mlx5_1"}
	}, "container-netdev", theTrainer + " HCA mlx5_1"},
	// seen in NVIDIA/nccl#1837
	"NCCL_IB_HCA names an HCA of another container": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().Env = cri.Env{"NCCL_IB_HCA": "=mlx5_1:1,mlx5_7"}
	}, "container-environment", theTrainer},
	// seen in NVIDIA/nccl#1837
	"NCCL_SOCKET_IFNAME names an interface of the node": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().Env = cri.Env{"NCCL_SOCKET_IFNAME": "bond0"}
	}, "container-environment", theTrainer},
	// seen in NVIDIA/nccl#1837
	"UCX_NET_DEVICES names an HCA of another container": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().Env = cri.Env{"UCX_NET_DEVICES": "mlx5_1:1"}
	}, "container-environment", theTrainer},
	// seen in k8snetworkplumbingwg/sriov-network-operator#57
	"an interface with a greater MTU than the function": {func(s *sick) {
		s.rails("10.244.0.8")
		s.container().MTU = map[string]int{"net1": 9000}
	}, "container-mtu", theTrainer + " HCA mlx5_0"},
	// seen in NVIDIA/nccl#2013, NVIDIA/nccl-tests#185
	"two HCAs in one subnet, and a strict filter": {func(s *sick) {
		s.rails("10.244.0.8", "10.244.0.9")
		s.container().Links[0].Strict, s.container().Links[1].Strict = true, true
	}, "container-routes", theTrainer + " HCA mlx5_0"},
	// seen in NVIDIA/nccl#1109
	"four HCAs of the node in one subnet, and a strict filter": {func(s *sick) {
		s.rails("10.244.0.8", "10.244.0.9", "10.244.0.10", "10.244.0.11")
		for i := range s.container().Links {
			s.container().Links[i].Strict, s.container().Links[i].Addresses = true, nil // without IPv6
		}
		s.container().OwnNetwork = false
		s.containers.Containers[1] = *s.container()
	}, "container-routes", "the node's network HCA mlx5_0"},
	// seen in k8snetworkplumbingwg/sriov-cni#348
	"no provider for the vendor's driver": {func(s *sick) {
		n := hcatest.RoCENode()
		for i := range n.HCAs {
			n.HCAs[i].Driver = "ionic"
		}
		s.files = n.Files().With(hcatest.Files{
			"sys/devices/pci0000:18/0000:18:00.0/infiniband_verbs/uverbs0/abi_version": "4\n",
			"usr/lib64/libibverbs/libionic-rdmav34.so":                                 "\x7fELF"})
		s.containers.Containers = s.containers.Containers[:1]
	}, "container-provider", theTrainer + " HCA mlx5_0"},
	"an image without the provider": {func(s *sick) {
		s.container().Providers = providers("rxe")
	}, "container-provider", theTrainer + " HCA mlx5_0"},
	"no provider for a soft HCA, which can have any name": {func(s *sick) {
		s.files = hcatest.Node{HCAs: []hcatest.HCA{{Name: "fabric0",
			Ports: []hcatest.Port{{LinkLayer: "Ethernet", Netdevs: []string{"eth0"}}}}}}.Files()
		s.container().HCAs, s.container().Providers = []string{"fabric0"}, providers("mlx5")
	}, "container-provider", theTrainer + " HCA fabric0"},
	"the kubelet's directory is elsewhere": {func(s *sick) {
		s.kubelet.Root = "/data/kubelet"
	}, "kubelet-root", "kubelet"},
	"the kubelet's socket is gone": {func(s *sick) {
		s.kubelet.DevicePlugins, s.kubelet.Allocatable["rdma/hca"] = false, 0
	}, "kubelet-device-plugins", "kubelet"},
	"the pod resources socket is gone": {func(s *sick) {
		s.kubelet.PodResources, s.kubelet.Allocatable = false, nil
	}, "kubelet-pod-resources", "kubelet"},
	"the kubelet does not answer": {func(s *sick) {
		s.kubelet.Error, s.kubelet.Allocatable = "connection refused", nil
	}, "kubelet-pod-resources", "kubelet"},
	"the socket of K3s' kubelet is gone": {func(s *sick) {
		s.kubelet.Unit, s.kubelet.DevicePlugins = "k3s-agent.service", false
	}, "kubelet-device-plugins", "kubelet"},
	"the socket of Talos' kubelet is gone": {func(s *sick) {
		s.kubelet.Unit, s.kubelet.DevicePlugins = "", false
	}, "kubelet-device-plugins", "kubelet"},
	"the device plugin did not register again": {func(s *sick) {
		s.kubelet.Allocatable["rdma/hca"] = 0
	}, "kubelet-allocatable", "kubelet resource rdma/hca"},
}

// asSentence begins a manual fix.
var asSentence = regexp.MustCompile("^[A-Z]|^recreate")

// ofPlanted has what the checks of software find on the nodes with a planted fault: several tests look at it.
var ofPlanted = map[string][]doctor.Finding{}

// lookAt returns what the checks find on the healthy node with a planted fault.
func lookAt(t *testing.T, name string) []doctor.Finding {
	t.Helper()
	if ofPlanted[name] == nil {
		s := healthy()
		planted[name].plant(s)
		ofPlanted[name] = s.look(t, software())
	}
	return slices.Clone(ofPlanted[name])
}

// said is what the doctor says of findings, and how they are fixed, for a golden file.
func said(found ...doctor.Finding) string {
	var text strings.Builder
	for _, f := range found {
		fmt.Fprintf(&text, "%s %s, %s: %s\n", f.Status, f.Check, f.Object, f.Text)
		if f.Fix != "" {
			fmt.Fprintf(&text, "    %s: %s\n", f.FixType, f.Fix)
		}
		if f.Warning != "" {
			fmt.Fprintf(&text, "    warning: %s\n", f.Warning)
		}
	}
	return text.String()
}

// wrong are the findings of a fault.
func wrong(found []doctor.Finding) []doctor.Finding {
	return slices.DeleteFunc(found, func(f doctor.Finding) bool { return f.Status != doctor.Wrong })
}

// Each planted fault is found by its check, and no other check finds anything wrong.
func TestPlantedFaults(t *testing.T) {
	found := map[string]bool{}
	var says golden.Cases
	for name, want := range planted {
		bad := wrong(lookAt(t, name))
		if len(bad) != 1 || bad[0].Check != want.check || bad[0].Object != want.object ||
			(bad[0].FixType == doctor.FixManual) != asSentence.MatchString(bad[0].Fix) {
			t.Errorf("%s: want %s about %q, got %+v", name, want.check, want.object, bad)
		}
		says.Add(t, name, said(bad...))
		found[want.check] = true
	}
	says.Compare(t, "testdata/software.txt")
	for _, c := range software() {
		unfounded := []string{"container-devices", "container-shm", "container-gpu"} // they find no fault
		if !found[c.ID] && !slices.Contains(unfounded, c.ID) {
			t.Errorf("no fault is planted for %s", c.ID)
		}
	}
}
