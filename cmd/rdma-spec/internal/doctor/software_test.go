// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/cdi"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// software are the checks of what runs on a node.
func software() []Check {
	return slices.Concat(runtimeChecks(), baseSpecChecks(), nriChecks(), pluginChecks(), configuredChecks(), cdiChecks(), containerChecks(), containerSightChecks(), kubeletChecks())
}

// sick is a node with its answers, to be changed.
type sick struct {
	runtimes   Runtimes
	plugin     Plugin
	configured Configured
	cdi        CDIFiles
	containers Containers
	kubelet    Kubelet
	files      hcatest.Files
	unanswered []Question
}

func bytesOf(n Bytes) *Bytes { return &n }

func yes(is bool) *bool { return &is }

const unlimited = Bytes(1<<64 - 1)

// healthy is a node with two RoCE HCAs, containerd with two handlers, the plugin as a service, two RDMA containers, and a kubelet.
func healthy() *sick {
	trainer := Container{
		Namespace: "ml", Pod: "train-0", Name: "worker", RDMA: true, State: "ok", Repair: "rdma-spec repair ml/train-0", Memlock: bytesOf(unlimited), Wanted: bytesOf(unlimited), User: 1000,
		IPCLock: yes(true), AddsLock: true, HostUsers: true, HCAs: []string{"mlx5_0"}, Seen: true,
		SharedMem: bytesOf(8 << 30), LibVerbs: true, Providers: []string{"mlx5", "rxe"},
	}
	other := trainer
	other.Pod = "train-1"
	return &sick{
		runtimes: Runtimes{[]Runtime{{
			Name: "containerd", Version: "2.4.2", PID: 100, Unit: "containerd.service", Memlock: bytesOf(8 << 20),
			Socket: "/run/containerd/containerd.sock", Serves: true, Pods: 2, Config: "/etc/containerd/config.toml", Known: true, DefaultHandler: "runc",
			Handlers: []Handler{{Name: "rdma", BaseSpec: "/etc/containerd/rdma.json", Memlock: bytesOf(unlimited), OCIVersion: "1.0.2", Program: "crun 1.8.1"}, {Name: "runc", Program: "runc"}},
			NRI:      NRI{On: true, Socket: "/var/run/nri/nri.sock", SocketExists: true, Listener: 100, Validator: true, RegistrationTimeout: 5 * time.Second, RequestTimeout: 2 * time.Second},
		}}},
		plugin: Plugin{
			Unit: true, Processes: []PluginProcess{{Name: "nri-rdma", PID: 200, Config: "/etc/rdma-spec/config.yaml"}, {Name: "nri-rdma", PID: 201, Validator: true}},
			Policy: PolicyInForce{Exists: true, Lives: true, Source: "/etc/rdma-spec/config.yaml", Version: "0.9"},
			Tool:   "0.9",
		},
		containers: Containers{Policy: "/run/rdma-spec/policy.yaml", Containers: []Container{trainer, other}},
		kubelet:    Kubelet{PID: 300, Root: "/var/lib/kubelet", DevicePlugins: true, PodResources: true, Allocatable: map[string]int{"cpu": 0, "rdma/hca": 8}},
		cdi: CDIFiles{Files: []cdi.Found{
			{Path: "/etc/cdi/rdma.yaml", Kind: cdi.Kind, Devices: []cdi.Device{{Name: cdi.Kind + "=mlx5_0", Nodes: []string{"/dev/infiniband/uverbs0"}}}},
			{Path: "/etc/cdi/nvidia.yaml", Kind: "nvidia.com/gpu", Problem: "it is not ours to judge"},
		}},
		files: hcatest.RoCENode().Files(),
	}
}

// look runs the checks on a copy of the node.
func (s *sick) look(t *testing.T, checks []Check) []Finding {
	t.Helper()
	files := maps.Clone(s.files)
	for q, answer := range map[Question]any{
		QuestionRuntimes: s.runtimes, QuestionPlugin: s.plugin, QuestionConfigured: s.configured, QuestionCDI: s.cdi, QuestionContainers: s.containers, QuestionKubelet: s.kubelet,
	} {
		text, err := json.Marshal(answer)
		if err == nil {
			text, err = json.Marshal(Answer{JSON: text})
		}
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(s.unanswered, q) {
			files[AnswersFolder+"/"+string(q)] = string(text)
		}
	}
	node := open(t, files, nil)
	node.undeclared = func(err error) { t.Error(err) }
	return Run(t.Context(), node, checks)
}

func (s *sick) runtime() *Runtime { return &s.runtimes.Runtimes[0] }

// asDaemonSet has the plugin run in containers, and not as a service.
func (s *sick) asDaemonSet() {
	s.plugin.Unit = false
	for i := range s.plugin.Processes {
		s.plugin.Processes[i].InContainer = true
	}
}

func (s *sick) container() *Container { return &s.containers.Containers[0] }
