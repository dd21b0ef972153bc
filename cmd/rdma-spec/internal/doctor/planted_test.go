// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/configure/change"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

const (
	theRuntime = "runtime /run/containerd/containerd.sock"
	theTrainer = "container ml/train-0 worker"
)

// planted are faults, each with the one check that finds it, the object, and a part of the cure.
var planted = map[string]struct {
	plant               func(s *sick)
	check, object, cure string
}{
	"a configuration that does not parse": {func(s *sick) {
		r := s.runtime()
		r.ConfigError, r.Known, r.Handlers, r.NRI = "toml: line 3: expected =", false, nil, NRI{Socket: r.NRI.Socket, SocketExists: true}
	}, "runtime-config", theRuntime, "Correct /etc/containerd/config.toml, and then: systemctl restart containerd"},
	"CRI is not loaded": {func(s *sick) {
		s.runtime().Serves, s.runtime().Error = false, "it does not serve CRI"
	}, "cri-serves", theRuntime, "systemctl restart containerd"},
	"CRI is disabled": {func(s *sick) {
		s.runtime().Serves, s.runtime().CRIDisabled = false, true
	}, "cri-serves", theRuntime, "Remove cri from disabled_plugins in /etc/containerd/config.toml, and then: systemctl restart containerd"},
	"containerd 1.7.5": {func(s *sick) {
		s.runtime().Version, s.runtime().Handlers = "1.7.5", s.runtime().Handlers[1:]
	}, "runtime-rlimits", theRuntime, "rdma-spec configure handler runc --in-place && systemctl restart containerd"},
	"CRI-O 1.28": {func(s *sick) {
		*s.runtime() = Runtime{Name: "cri-o", Version: "1.28.4", PID: 100, Socket: "/run/crio/crio.sock", Serves: true, Known: true, NRI: s.runtime().NRI}
	}, "runtime-rlimits", "runtime /run/crio/crio.sock", "rdma-spec generate --for crio --output /etc/crio/crio.conf.d/90-rdma-spec.conf && systemctl restart crio"},
	"a CDI file of another boot": {func(s *sick) {
		s.cdi.Files[0].Devices[0].Problem = "it has uverbs1 now, and the file has uverbs0"
	}, "cdi-files", "CDI file /etc/cdi/rdma.yaml", "$(sed -n 's/^# Made with: //p' /etc/cdi/rdma.yaml) --output /etc/cdi/rdma.yaml"},
	"a CDI file whose hook is gone": {func(s *sick) {
		s.cdi.Files[0].Problem = "the hook /usr/local/bin/rdma-hook does not exist"
	}, "cdi-files", "CDI file /etc/cdi/rdma.yaml", "rdma-spec configure cdi"},
	"nothing gives memlock": {func(s *sick) {
		s.plugin, s.runtime().Handlers = Plugin{}, s.runtime().Handlers[1:]
	}, "memlock-source", theRuntime, "rdma-spec configure nri && systemctl restart containerd && rdma-spec configure plugin && "},
	"a base spec that is missing": {func(s *sick) {
		s.runtime().Handlers[0] = Handler{Name: "rdma", BaseSpec: "/etc/containerd/rdma.json", Error: "no such file or directory"}
		s.runtime().Serves = false
	}, "base-spec", theRuntime, "rdma-spec generate --output /etc/containerd/rdma.json && systemctl restart containerd"},
	"a base spec with 1024 files": {func(s *sick) {
		s.runtime().Handlers[0].CapsFiles = true
	}, "base-spec-files", theRuntime + " handler rdma", "rdma-spec configure handler rdma --in-place && systemctl restart containerd"},
	"a base spec with 1024 files, written by configure": {func(s *sick) {
		s.runtime().Handlers[0].CapsFiles, s.runtime().Handlers[0].BaseSpec = true, "/etc/containerd/rdma-spec-rdma.json"
	}, "base-spec-files", theRuntime + " handler rdma", "rdma-spec generate --output /etc/containerd/rdma-spec-rdma.json && systemctl restart containerd"},
	"a base spec with a low memlock": {func(s *sick) {
		s.plugin, s.runtime().Handlers[0].Memlock = Plugin{}, bytesOf(64<<10)
	}, "base-spec-memlock", theRuntime + " handler rdma", "rdma-spec configure handler rdma --in-place && systemctl restart containerd"},
	"a base spec of a version that crun refuses": {func(s *sick) {
		s.runtime().Handlers[0].OCIVersion = "1.3.0"
	}, "oci-version", theRuntime + " handler rdma", `"ociVersion": "1.0.2"/' /etc/containerd/rdma.json && systemctl restart containerd`},
	"a default spec of a version that crun refuses": {func(s *sick) {
		s.runtime().Handlers[1].Program = "crun 1.8.1"
	}, "oci-version", theRuntime + " handler runc", "rdma-spec configure handler runc --in-place && systemctl restart containerd"},
	"NRI is off": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.Off, s.runtime().NRI.SocketExists, s.plugin.Policy = false, "disable = true", false, PolicyInForce{}
	}, "nri-on", theRuntime, "rdma-spec configure nri && systemctl restart containerd"},
	"NRI is off beside another containerd": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.Off = false, "disable = true"
		s.runtimes.Runtimes = append(s.runtimes.Runtimes, Runtime{Name: "containerd", Config: "/run/docker/containerd.toml", PID: 101, Known: true, CRIDisabled: true})
	}, "nri-on", theRuntime, "rdma-spec configure nri --config /etc/containerd/config.toml && systemctl restart containerd"},
	"NRI is off since another tool rewrote the file": {func(s *sick) {
		s.runtime().NRI.On, s.runtime().NRI.SocketExists, s.plugin.Policy = false, false, PolicyInForce{}
		s.configured.Overwritten = []change.Overwriting{{Path: "/etc/containerd/config.toml", Feature: "nri"}, {Path: "/etc/containerd/conf.d/nri.toml", Feature: "nri", Missing: true}}
	}, "configuration-kept", theRuntime, "rdma-spec configure nri && systemctl restart containerd"},
	"another tool removed a handler": {func(s *sick) {
		s.runtime().Handlers = s.runtime().Handlers[1:]
		s.configured.Overwritten = []change.Overwriting{{Path: "/etc/containerd/config.toml", Feature: "handler rdma"}}
	}, "configuration-kept", theRuntime + " handler rdma", "rdma-spec configure handler rdma --like runc && systemctl restart containerd"},
	"another tool removed a base spec": {func(s *sick) {
		s.runtime().Handlers[0].BaseSpec = ""
		s.configured.Overwritten = []change.Overwriting{{Path: "/etc/containerd/config.toml", Feature: "handler rdma"}}
	}, "configuration-kept", theRuntime + " handler rdma", "rdma-spec configure handler rdma --in-place && systemctl restart containerd"},
	"the socket of NRI is gone": {func(s *sick) {
		s.runtime().NRI.SocketExists, s.plugin.Policy.Lives = false, false
	}, "nri-socket", theRuntime, "systemctl restart containerd"},
	"two containerds, and the other one has NRI's socket": {func(s *sick) {
		s.runtimes.Runtimes = append(s.runtimes.Runtimes, Runtime{Name: "containerd", Version: "2.4.2", Socket: "/run/second/c.sock", Config: "/run/second/c.toml", PID: 101, Serves: true, Known: true, NRI: s.runtime().NRI})
		s.runtimes.Runtimes[0].NRI.Listener, s.runtimes.Runtimes[1].NRI.Listener = 101, 101
	}, "nri-owner", theRuntime, "of /run/second/c.toml, restart that runtime"},
	"plugins are required globally": {func(s *sick) {
		s.runtime().NRI.Required = []string{"rdma"}
	}, "nri-required-plugins", theRuntime, "Remove required_plugins from /etc/containerd/config.toml"},
	"a short timeout": {func(s *sick) {
		s.runtime().NRI.RequestTimeout = 100 * time.Millisecond
	}, "nri-timeouts", theRuntime, `Set plugin_request_timeout = "2s" in /etc/containerd/config.toml`},
	"ulimit-adjuster is launched": {func(s *sick) {
		s.files["opt/nri/plugins/10-ulimit-adjuster"] = "#!"
		s.plugin.Processes = append(s.plugin.Processes, PluginProcess{Name: "ulimit-adjuster", PID: 400})
	}, "nri-rivals", "plugin ulimit-adjuster", "rm /opt/nri/plugins/10-ulimit-adjuster && systemctl restart containerd"},
	"device-injector runs": {func(s *sick) {
		s.plugin.Processes = append(s.plugin.Processes, PluginProcess{Name: "device-injector", PID: 400})
	}, "nri-rivals", "plugin device-injector", "kill 400"},
	"the plugin runs twice": {func(s *sick) {
		s.plugin.Processes = append(s.plugin.Processes, PluginProcess{Name: "nri-rdma", PID: 400})
	}, "nri-rivals", "plugin nri-rdma", "Keep one of"},
	"the service is down": {func(s *sick) {
		s.plugin.Processes, s.plugin.Policy.Lives, s.containers.Policy = s.plugin.Processes[1:], false, ""
	}, "plugin-runs", "", "systemctl restart nri-rdma"},
	"the launched plugin is down": {func(s *sick) {
		s.plugin = Plugin{Launched: "/opt/nri/plugins/90-rdma"}
	}, "plugin-runs", "", "systemctl restart containerd"},
	"the plugin is gone": {func(s *sick) {
		s.plugin = Plugin{Policy: PolicyInForce{Exists: true}}
	}, "plugin-runs", "", "For a DaemonSet: kubectl -n rdma-spec describe daemonset nri-rdma. For a service: rdma-spec configure plugin && systemctl daemon-reload && systemctl enable --now nri-rdma"},
	"the plugin's configuration is garbage": {func(s *sick) {
		s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, PolicyInForce{}
	}, "plugin-config", "", "see: rdma-spec config check /etc/rdma-spec/config.yaml"},
	"the DaemonSet's configuration is garbage": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Processes[0].ConfigError, s.plugin.Policy = `unknown field "memlok"`, PolicyInForce{}
	}, "plugin-config", "", `see: kubectl -n rdma-spec get configmap nri-rdma -o jsonpath='{.data.config\.yaml}' | rdma-spec config check -`},
	"the DaemonSet's plugin is not registered": {func(s *sick) {
		s.asDaemonSet()
		s.plugin.Policy.Lives = false
	}, "plugin-registered", theRuntime, "kubectl -n rdma-spec rollout restart daemonset/nri-rdma"},
	"the plugin is not registered": {func(s *sick) {
		s.plugin.Policy.Lives = false
	}, "plugin-registered", theRuntime, "systemctl restart nri-rdma"},
	"the policy in force is garbage": {func(s *sick) {
		s.plugin.Policy = PolicyInForce{Exists: true, Error: "/run/rdma-spec/policy.yaml cannot be read as a policy: it is empty"}
		s.containers.Policy = ""
	}, "policy-readable", "", "systemctl restart nri-rdma"},
	"the plugin was upgraded": {func(s *sick) {
		s.plugin.Processes[0].Replaced = true
	}, "plugin-current", "", "systemctl restart nri-rdma"},
	"a container below policy": {func(s *sick) {
		s.container().State, s.container().Memlock, s.container().Problems = "below", bytesOf(8<<20), []string{"memlock is 8Mi, the policy gives unlimited"}
	}, "container-memlock", theTrainer, "rdma-spec repair ml/train-0"},
	"a user without the IPC_LOCK of its pod": {func(s *sick) {
		s.container().State, s.container().Memlock, s.container().IPCLock = "below", bytesOf(8<<20), yes(false)
	}, "container-ipc-lock", theTrainer, "rdma-spec repair ml/train-0"},
	"a container that would be refused": {func(s *sick) {
		s.container().State, s.container().Problems = "refused", []string{`a new container would be refused: namespace "ml" may not opt in by annotation`}
	}, "container-refused", theTrainer, "the policy (/run/rdma-spec/policy.yaml)"},
	"a container without the HCA of its annotation": {func(s *sick) {
		s.container().State, s.container().Lacks, s.container().HCAs = "below", true, nil
	}, "container-hca", theTrainer, "kubectl -n ml delete pod train-0"},
	"a container with a port that is down": {func(s *sick) {
		node := hcatest.RoCENode()
		node.HCAs[0].Ports[0] = node.HCAs[0].Ports[0].Down()
		s.files = node.Files()
	}, "container-port", "HCA mlx5_0 port 1", "Bring the port up"},
	"a hostPath and no device": {func(s *sick) {
		s.containers.Containers = append(s.containers.Containers, Container{Namespace: "ml", Pod: "efa-0", Name: "worker", State: "ok", HostPaths: []string{"/dev/infiniband"}})
	}, "container-hostpath", "container ml/efa-0 worker", "Remove the hostPath volume"},
	"a hostPath beside the device plugin": {func(s *sick) {
		s.container().HostPaths = []string{"/dev/infiniband"}
	}, "container-hostpath", theTrainer, "Remove the hostPath volume"},
	"no interface of the HCA": {func(s *sick) {
		s.container().OwnNetwork, s.container().Links = true, []string{"eth5"}
	}, "container-netdev", theTrainer + " HCA mlx5_0", "hostNetwork: true"},
	"no interface but lo": {func(s *sick) {
		s.container().OwnNetwork = true
	}, "container-netdev", theTrainer + " HCA mlx5_0", "hostNetwork: true"},
	"CDI off in containerd": {func(s *sick) {
		s.runtime().CDIOff = true
	}, "cdi-on", theRuntime, "Set enable_cdi = true in [plugins.'io.containerd.cri.v1.runtime'] of /etc/containerd/config.toml"},
	"a containerd that reads other CDI files": {func(s *sick) {
		s.runtime().CDIFolders = []string{"/opt/cdi", "/run/cdi/"}
	}, "cdi-on", theRuntime, "Set cdi_spec_dirs = "},
	"Docker before CDI": {func(s *sick) {
		s.kubelet, s.cdi.Docker = Kubelet{}, &Docker{Version: "20.10.24+dfsg1"}
	}, "cdi-on", "runtime docker", "Install Docker 28.2 or later"},
	"CDI off in Docker": {func(s *sick) {
		s.kubelet, s.cdi.Docker = Kubelet{}, &Docker{Version: "28.1.1"}
	}, "cdi-on", "runtime docker", `Set "features": {"cdi": true} in /etc/docker/daemon.json`},
	"a GID index of another pod's interface": {func(s *sick) {
		c, index := s.container(), 2
		c.OwnNetwork, c.Links, c.GIDIndex = true, []string{"net1"}, &index
		s.files = s.files.With(hcatest.Files{gidInterface("mlx5_0", 1, "2"): "net2\n", gidInterface("mlx5_0", 1, "4"): "net1\n"})
	}, "container-gid-index", theTrainer + " HCA mlx5_0", "Remove NCCL_IB_GID_INDEX"},
	"a GID index that the HCA does not have": {func(s *sick) {
		index := 250
		s.container().GIDIndex = &index
	}, "container-gid-index", theTrainer + " HCA mlx5_0", "Remove NCCL_IB_GID_INDEX"},
	"no provider in the image": {func(s *sick) {
		s.container().Providers = []string{"rxe"}
	}, "container-provider", theTrainer + " HCA mlx5_0", "apt-get install ibverbs-providers"},
	"no provider for a soft HCA, which can have any name": {func(s *sick) {
		s.files = hcatest.Node{HCAs: []hcatest.HCA{{Name: "fabric0", Ports: []hcatest.Port{{LinkLayer: "Ethernet", Netdevs: []string{"eth0"}}}}}}.Files()
		s.container().HCAs, s.container().Providers = []string{"fabric0"}, []string{"mlx5"}
	}, "container-provider", theTrainer + " HCA fabric0", "apt-get install ibverbs-providers"},
	"the kubelet's folder is elsewhere": {func(s *sick) {
		s.kubelet.Root = "/data/kubelet"
	}, "kubelet-root", "kubelet", "mount --bind /data/kubelet /var/lib/kubelet"},
	"the kubelet's socket is gone": {func(s *sick) {
		s.kubelet.DevicePlugins, s.kubelet.Allocatable["rdma/hca"] = false, 0
	}, "kubelet-device-plugins", "kubelet", "systemctl restart kubelet"},
	"the pod resources socket is gone": {func(s *sick) {
		s.kubelet.PodResources, s.kubelet.Allocatable = false, nil
	}, "kubelet-pod-resources", "kubelet", "systemctl restart kubelet"},
	"the kubelet does not answer": {func(s *sick) {
		s.kubelet.Error, s.kubelet.Allocatable = "connection refused", nil
	}, "kubelet-pod-resources", "kubelet", "systemctl restart kubelet"},
	"the socket of K3s' kubelet is gone": {func(s *sick) {
		s.kubelet.Unit, s.kubelet.DevicePlugins = "k3s-agent.service", false
	}, "kubelet-device-plugins", "kubelet", "systemctl restart k3s-agent"},
	"the device plugin did not register again": {func(s *sick) {
		s.kubelet.Allocatable["rdma/hca"] = 0
	}, "kubelet-allocatable", "kubelet resource rdma/hca", "Delete the pod of the device plugin"},
}

// Each planted fault is found by its check, with its cure, and no other check finds anything wrong.
func TestPlantedFaults(t *testing.T) {
	found := map[string]bool{}
	for name, test := range planted {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			test.plant(s)
			var bad []Finding
			for _, f := range s.look(t, software()) {
				if f.Status == Wrong {
					bad = append(bad, f)
				}
			}
			if len(bad) != 1 || bad[0].Check != test.check || bad[0].Object != test.object || !strings.Contains(bad[0].Cure, test.cure) {
				t.Errorf("want %s about %q, with the cure %q, got %+v", test.check, test.object, test.cure, bad)
			}
		})
		found[test.check] = true
	}
	for _, c := range software() {
		told := []string{"container-devices", "container-shm"} // they find no fault
		if !found[c.ID] && !slices.Contains(told, c.ID) {
			t.Errorf("no fault is planted for %s", c.ID)
		}
	}
}
