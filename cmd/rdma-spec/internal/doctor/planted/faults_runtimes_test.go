// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"net/netip"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
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

// plantedRuntimes are faults of container runtimes, the plugin, CDI files, and the kubelet.
var plantedRuntimes = []fault{
	{
		name: "a configuration that does not parse", check: "runtime-config", object: theRuntime,
		plant: func(s *sick) {
			r := s.runtime()
			r.ConfigError, r.Known, r.Handlers, r.NRI = "toml: line 3: expected =", false, nil,
				runtime.NRI{Socket: r.NRI.Socket, SocketExists: true}
		},
	},
	{
		name: "a drop-in that containerd 1.7 does not merge", check: "runtime-config", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Ignored = []runtime.Ignored{{File: "/etc/containerd/config.toml", Reason: "containerd 1.7.35 does not merge " +
				"sections: the io.containerd.grpc.v1.cri section in /etc/containerd/conf.d/x.toml replaces the section in the earlier file " +
				"and drops sandbox_image",
				Fix: "copy the lost keys from /etc/containerd/config.toml to /etc/containerd/conf.d/x.toml, or remove the section " +
					"from /etc/containerd/conf.d/x.toml"}}
		},
	},
	{
		name: "a handler without a runtime_type", check: "handler-type", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers[0].NoType, s.runtime().Handlers[0].File = true, "/etc/containerd/conf.d/rdma.toml"
		},
	},
	{
		name: "CRI is not loaded", check: "cri-serves", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Serves, s.runtime().Error = false, "the runtime does not provide the CRI"
		},
	},
	{
		name: "CRI is disabled", check: "cri-serves", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Serves, s.runtime().CRIDisabled = false, true
		},
	},
	{
		name: "containerd 1.7.5", check: "runtime-rlimits", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Version, s.runtime().Handlers = "1.7.5", s.runtime().Handlers[1:]
		},
	},
	{
		name: "containerd 1.7.5 whose default handler is NVIDIA's", check: "runtime-rlimits", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Version, s.runtime().Handlers, s.runtime().DefaultHandler = "1.7.5",
				[]runtime.Handler{{Name: "nvidia"}}, "nvidia"
		},
	},
	{
		name: "a default handler with 1024 files", check: "base-spec-files", object: theRuntime + " handler nvidia",
		plant: func(s *sick) {
			s.asDefault().CapsFiles = true
		},
	},
	{
		name: "a default handler with a low memlock", check: "base-spec-memlock", object: theRuntime + " handler nvidia",
		plant: func(s *sick) {
			s.plugin, s.asDefault().Memlock, s.containers = agents.Plugin{}, bytesOf(64<<10), node.Containers{}
		},
	},
	{
		name: "another tool removed the base spec of the default handler", check: "configuration-kept", object: theRuntime + " handler nvidia",
		plant: func(s *sick) {
			s.asDefault().BaseSpec = ""
			s.runtime().Handlers[0].Memlock = nil
			s.configured.Features = []goal.Feature{featureOf("handler nvidia", "nvidia", goal.Lost)}
		},
	},
	{
		name: "CRI-O 1.28", check: "runtime-rlimits", object: "runtime /run/crio/crio.sock",
		plant: func(s *sick) {
			*s.runtime() = runtime.Runtime{Name: "cri-o", Version: "1.28.4", PID: 100, Socket: "/run/crio/crio.sock",
				Serves: true, Known: true, NRI: s.runtime().NRI}
		},
	},
	{
		name: "a CDI file of another boot", check: "cdi-files", object: "CDI file /etc/cdi/rdma.yaml",
		plant: func(s *sick) {
			s.cdi.Files[0].Devices[0].Problem = "the device now has uverbs1, but the file lists uverbs0"
		},
	},
	{
		name: "a CDI file whose hook is gone", check: "cdi-files", object: "CDI file /etc/cdi/rdma.yaml",
		plant: func(s *sick) {
			s.cdi.Files[0].Problem = "the hook /usr/local/bin/rdma-hook does not exist"
		},
	},
	{
		name: "nothing gives memlock, and no RDMA container runs yet", check: "memlock-source", object: theRuntime,
		plant: func(s *sick) {
			s.plugin, s.runtime().Handlers, s.containers = agents.Plugin{}, s.runtime().Handlers[1:], node.Containers{}
			s.runtime().NRI = runtime.NRI{Off: "disable = true"}
		},
	},
	{
		name: "nothing gives memlock beside a soft HCA", check: "memlock-source", object: theRuntime,
		plant: func(s *sick) {
			s.plugin, s.runtime().Handlers, s.files = agents.Plugin{}, s.runtime().Handlers[1:], hcatest.SoftRoCENode().Files()
			s.containers, s.kubelet, s.cdi = node.Containers{}, agents.Kubelet{}, cdi.Files{}
		},
	},
	{
		name: "a runtime that may not raise limits", check: "runtime-rlimits", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Startable = bytesOf(8 << 20)
		},
	},
	{
		name: "only a sandboxed handler gives memlock", check: "memlock-source", object: theRuntime,
		plant: func(s *sick) {
			s.plugin, s.containers, s.runtime().Handlers[0].Sandboxed = agents.Plugin{}, node.Containers{}, true
		},
	},
	{
		name: "only a sandboxed handler gives memlock, and it is the default one of an old containerd", check: "runtime-rlimits", object: theRuntime,
		plant: func(s *sick) {
			s.plugin, s.containers, s.runtime().Version = agents.Plugin{}, node.Containers{}, "1.7.5"
			s.asDefault().Sandboxed = true
		},
	},
	{
		name: "a base spec that is missing", check: "base-spec", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().Handlers[0] = runtime.Handler{Name: "rdma", BaseSpec: "/etc/containerd/rdma.json",
				Error: "no such file or directory"}
			s.runtime().Serves = false
		},
	},
	{
		name: "a base spec with 1024 files", check: "base-spec-files", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers[0].CapsFiles = true
		},
	},
	{
		name: "a base spec with 1024 files, written by configure", check: "base-spec-files", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers[0].CapsFiles, s.runtime().Handlers[0].BaseSpec = true, "/etc/containerd/rdma-spec-rdma.json"
		},
	},
	{
		name: "a base spec with a low memlock", check: "base-spec-memlock", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.plugin, s.runtime().Handlers[0].Memlock = agents.Plugin{}, bytesOf(64<<10)
		},
	},
	{
		name: "a base spec of a version that crun refuses", check: "oci-version", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers[0].OCIVersion = "1.3.0"
		},
	},
	{
		name: "a default spec of a version that crun refuses", check: "oci-version", object: theRuntime + " handler runc",
		plant: func(s *sick) {
			s.runtime().Handlers[1].Program = "crun 1.8.1"
		},
	},
	{
		name: "NRI is off", check: "nri-on", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.On, s.runtime().NRI.Off, s.runtime().NRI.SocketExists, s.plugin.Policy = false, "disable = true",
				false, agents.PolicyInForce{}
		},
	},
	{
		name: "NRI is off beside another containerd", check: "nri-on", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.On, s.runtime().NRI.Off = false, "disable = true"
			s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd",
				Config: "/run/docker/containerd.toml", PID: 101, Known: true, CRIDisabled: true})
		},
	},
	{
		name: "NRI is off since another tool rewrote the file", check: "configuration-kept", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.On, s.runtime().NRI.SocketExists, s.plugin.Policy = false, false, agents.PolicyInForce{}
			s.configured.Features = []goal.Feature{featureOf("nri", "", goal.Lost)}
		},
	},
	{
		name: "another tool removed a handler", check: "configuration-kept", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers = s.runtime().Handlers[1:]
			s.configured.Features = []goal.Feature{featureOf("handler rdma", "runc", goal.Lost)}
		},
	},
	{
		name: "another tool removed a base spec", check: "configuration-kept", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.runtime().Handlers[0].BaseSpec = ""
			s.configured.Features = []goal.Feature{featureOf("handler rdma", "rdma", goal.Lost)}
		},
	},
	{
		name: "a handler that is not like its model any longer", check: "configuration-kept", object: theRuntime + " handler rdma",
		plant: func(s *sick) {
			s.configured.Features = []goal.Feature{featureOf("handler rdma", "runc", goal.Stale, "plugins.cri.rdma.sandboxer")}
		},
	},
	{
		name: "a drop-in that takes the CRI section away", check: "configuration-kept", object: theRuntime,
		plant: func(s *sick) {
			s.configured.Features = []goal.Feature{featureOf("nri", "", goal.Kept), featureOf("handler rdma", "runc", goal.Kept)}
			s.configured.SideEffects = []goal.SideEffect{{Config: "/etc/containerd/config.toml", Files: []string{"/etc/containerd/conf.d/a.toml"},
				Differs: []string{"a", "b", "c", "d", "e"}}}
		},
	},
	{
		name: "the drop-in of a unit is gone", check: "configuration-kept", object: "",
		plant: func(s *sick) {
			s.configured.Features = []goal.Feature{{Feature: "limits", State: goal.Lost, Differs: []string{"/etc/x.conf"}}}
		},
	},
	{
		name: "the socket of NRI is gone", check: "nri-socket", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.SocketExists, s.plugin.Policy.Lives = false, false
		},
	},
	{
		name: "two containerds, and the other one has NRI's socket", check: "nri-owner", object: theRuntime,
		plant: func(s *sick) {
			s.runtimes.Runtimes = append(s.runtimes.Runtimes, runtime.Runtime{Name: "containerd", Version: "2.4.2",
				Socket: "/run/second/c.sock", Config: "/run/second/c.toml", PID: 101, Serves: true,
				Known: true, NRI: s.runtime().NRI})
			s.runtimes.Runtimes[0].NRI.Listener, s.runtimes.Runtimes[1].NRI.Listener = 101, 101
		},
	},
	{
		name: "plugins are required globally", check: "nri-required-plugins", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.Required = []string{"image-policy", "rdma"}
		},
	},
	{
		name: "a short timeout", check: "nri-timeouts", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().NRI.RequestTimeout = 100 * time.Millisecond
		},
	},
	{
		name: "ulimit-adjuster is launched", check: "nri-rivals", object: "plugin ulimit-adjuster",
		plant: func(s *sick) {
			s.files["opt/nri/plugins/10-ulimit-adjuster"] = "#!"
			s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "ulimit-adjuster", PID: 400})
		},
	},
	{
		name: "device-injector runs", check: "nri-rivals", object: "plugin device-injector",
		plant: func(s *sick) {
			s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "device-injector", PID: 400})
		},
	},
	{
		name: "the plugin runs twice", check: "nri-rivals", object: "plugin nri-rdma",
		plant: func(s *sick) {
			s.plugin.Processes = append(s.plugin.Processes, agents.PluginProcess{Name: "nri-rdma", PID: 400})
		},
	},
	{
		name: "two DaemonSets, and an update of one", check: "nri-rivals", object: "plugin nri-rdma",
		plant: func(s *sick) {
			s.plugin.Processes = []agents.PluginProcess{{Name: "nri-rdma", PID: 200, Handover: "/rdma-spec/handover/a.nri-rdma"},
				{Name: "nri-rdma", PID: 400, Handover: "/rdma-spec/handover/a.nri-rdma"},
				{Name: "nri-rdma", PID: 500, Handover: "/rdma-spec/handover/b.nri-rdma"}}
		},
	},
	{
		name: "the service is down", check: "plugin-runs", object: "",
		plant: func(s *sick) {
			s.containers.Unjudged = "no policy is in force"
			s.plugin.Processes, s.plugin.Policy.Lives = s.plugin.Processes[1:], false
		},
	},
	{
		name: "the launched plugin is down", check: "plugin-runs", object: "",
		plant: func(s *sick) {
			s.plugin = agents.Plugin{Launched: "/opt/nri/plugins/90-rdma"}
		},
	},
	{
		name: "the plugin is gone", check: "plugin-runs", object: "",
		plant: func(s *sick) {
			s.plugin = agents.Plugin{Policy: agents.PolicyInForce{Exists: true}}
		},
	},
	{
		name: "the plugin's configuration is garbage", check: "plugin-config", object: "",
		plant: func(s *sick) {
			s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, agents.PolicyInForce{}
		},
	},
	{
		name: "the DaemonSet's configuration is garbage", check: "plugin-config", object: "",
		plant: func(s *sick) {
			s.asDaemonSet()
			s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, agents.PolicyInForce{}
		},
	},
	{
		name: "the DaemonSet's plugin is not registered", check: "plugin-registered", object: theRuntime,
		plant: func(s *sick) {
			s.asDaemonSet()
			s.plugin.Policy.Lives = false
		},
	},
	{
		name: "the plugin is not registered", check: "plugin-registered", object: theRuntime,
		plant: func(s *sick) {
			s.plugin.Policy.Lives = false
		},
	},
	{
		name: "the policy in force is garbage", check: "policy-readable", object: "",
		plant: func(s *sick) {
			s.plugin.Policy = agents.PolicyInForce{Exists: true,
				Error: "/run/rdma-spec/policy.yaml cannot be read as a policy: it is empty"}
			s.containers.Unjudged = "no policy is in force"
		},
	},
	{
		name: "the policy in force of the DaemonSet is garbage", check: "policy-readable", object: "",
		plant: func(s *sick) {
			s.asDaemonSet()
			s.plugin.Policy = agents.PolicyInForce{Exists: true,
				Error: "/run/rdma-spec/policy.yaml cannot be read as a policy: it is empty"}
			s.containers.Unjudged = "no policy is in force"
		},
	},
	{
		name: "the DaemonSet's plugin is not registered, and nobody lists its pod", check: "plugin-registered", object: theRuntime,
		plant: func(s *sick) {
			s.asDaemonSet()
			s.plugin.Policy.Lives, s.unanswered = false, []string{"listing.json"}
		},
	},
	{
		name: "the plugin was upgraded", check: "plugin-current", object: "",
		plant: func(s *sick) {
			s.plugin.Processes[0].Replaced, s.plugin.Processes[0].Started = true, someday
		},
	},
	{
		name: "the validator was upgraded", check: "plugin-current", object: "",
		plant: func(s *sick) {
			validator := s.plugin.Processes[0]
			validator.PID, validator.Validator, validator.Replaced, validator.Started = 201, true, true, someday
			s.plugin.Processes = append(s.plugin.Processes, validator)
		},
	},
	{
		name: "a device plugin that uses CDI, which is off", check: "cdi-on", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().CDIOff, s.cdi.Files[0] = true, sriovFile
			s.cdi.Podman = true
		},
	},
	{
		name: "a device plugin's CDI file of another boot", check: "cdi-files", object: "CDI file /var/run/cdi/sriov-dp.yaml",
		plant: func(s *sick) {
			s.cdi.Files = append(s.cdi.Files, sriovFile)
			s.cdi.Files[2].Devices = []cdi.Device{{Name: "nvidia.com/net-pci=0000:18:00.2",
				Nodes: []string{"/dev/infiniband/uverbs7"}, Problem: "/dev/infiniband/uverbs7 does not exist on this node"}}
		},
	},
	{
		name: "CDI off in containerd", check: "cdi-on", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().CDIOff = true
		},
	},
	{
		name: "a containerd that reads other CDI files", check: "cdi-on", object: theRuntime,
		plant: func(s *sick) {
			s.runtime().CDIDirs = []string{"/opt/cdi", "/run/cdi/"}
		},
	},
	{
		name: "Docker before CDI", check: "cdi-on", object: "runtime docker",
		plant: func(s *sick) {
			s.kubelet, s.cdi.Docker = agents.Kubelet{}, &cdi.Docker{Version: "20.10.24+dfsg1"}
		},
	},
	{
		name: "CDI off in Docker", check: "cdi-on", object: "runtime docker",
		plant: func(s *sick) {
			s.kubelet, s.cdi.Docker = agents.Kubelet{}, &cdi.Docker{Version: "28.1.1"}
		},
	},
	{
		name: "the kubelet's directory is elsewhere", check: "kubelet-root", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.Root = "/data/kubelet"
		},
	},
	{
		name: "the kubelet's socket is gone", check: "kubelet-device-plugins", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.DevicePlugins, s.kubelet.Allocatable["rdma/hca"] = false, 0
		},
	},
	{
		name: "the pod resources socket is gone", check: "kubelet-pod-resources", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.PodResources, s.kubelet.Allocatable = false, nil
		},
	},
	{
		name: "the kubelet does not answer", check: "kubelet-pod-resources", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.Error, s.kubelet.Allocatable = "connection refused", nil
		},
	},
	{
		name: "the socket of K3s' kubelet is gone", check: "kubelet-device-plugins", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.Unit, s.kubelet.DevicePlugins = "k3s-agent.service", false
		},
	},
	{
		name: "the socket of Talos' kubelet is gone", check: "kubelet-device-plugins", object: "kubelet",
		plant: func(s *sick) {
			s.kubelet.Unit, s.kubelet.DevicePlugins = "", false
		},
	},
	{
		name: "the device plugin did not register again", check: "kubelet-allocatable", object: "kubelet resource rdma/hca",
		plant: func(s *sick) {
			s.kubelet.Allocatable["rdma/hca"] = 0
		},
	},
}
