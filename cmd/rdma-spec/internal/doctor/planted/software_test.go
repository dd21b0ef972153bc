// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	everything "github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/checks"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/containers"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/runtimes"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/agents"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cdi"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/goal"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// software are the checks of what runs on a node.
func software() []doctor.Check {
	return slices.Concat(runtimes.Checks(), containers.Checks(), runtimes.KubeletChecks())
}

// sick is a node with its answers, to be changed.
type sick struct {
	runtimes   runtime.Runtimes
	plugin     agents.Plugin
	configured goal.Configured
	cdi        cdi.Files
	containers node.Containers
	kubelet    agents.Kubelet
	files      hcatest.Files
	unanswered []string
	waiting    []string // pods none of whose containers runs
	scope      *process.Scope
	strangers  []int
}

// featureOf is a feature of the containerd of the node.
func featureOf(feature, like string, state goal.State, differs ...string) goal.Feature {
	return goal.Feature{Feature: feature, Asked: map[string]string{goal.Like: like}, Config: "/etc/containerd/config.toml",
		Since: time.Date(2026, 11, 22, 7, 30, 0, 0, time.UTC), State: state, Differs: differs}
}

func bytesOf(n spec.Limit) *spec.Limit { return &n }

func both(l spec.Limit) *spec.Rlimit { return &spec.Rlimit{Soft: l, Hard: l} }

func yes(is bool) *bool { return &is }

func providers(names ...string) map[string]string {
	all := map[string]string{}
	for _, name := range names {
		all[name] = "/usr/lib64/libibverbs/lib" + name + "-rdmav34.so"
	}
	return all
}

const unlimited = spec.Limit(1<<64 - 1)

// healthy is a node with two RoCE HCAs, containerd with two handlers, the plugin as a service, two RDMA containers, and
// a kubelet.
func healthy() *sick {
	trainer := node.Container{
		Report: node.Report{
			Namespace: "ml", Pod: "train-0", Container: "worker", State: "ok",
			Memlock: &spec.Rlimit{Soft: unlimited, Hard: unlimited}, Registers: bytesOf(unlimited),
			Wanted: &spec.Grant{Memlock: unlimited}, IPCLock: yes(true), HCAs: []string{"mlx5_0"},
			Fix: "rdma-spec repair ml/train-0",
		},
		Runtime: cri.Identity{Name: "containerd", Socket: "/run/containerd/containerd.sock"}, OpenFiles: both(1 << 20),
		RDMA: true, Bounding: []string{spec.CapIPCLock},
		Inside: process.Inside{User: 1000, Known: true, SharedMem: bytesOf(8 << 30),
			Image: process.Image{LibVerbs: "/usr/lib64/libibverbs.so.1", Providers: providers("mlx5", "rxe")}},
	}
	other := trainer
	other.Pod = "train-1"
	return &sick{
		runtimes: runtime.Runtimes{Runtimes: []runtime.Runtime{{
			Name: "containerd", Version: "2.4.2", PID: 100, Unit: "containerd.service", Memlock: bytesOf(8 << 20),
			Socket: "/run/containerd/containerd.sock", Serves: true, Pods: 2, Config: "/etc/containerd/config.toml",
			Known: true, DefaultHandler: "runc",
			Handlers: []runtime.Handler{{Name: "rdma", BaseSpec: "/etc/containerd/rdma.json", Memlock: bytesOf(unlimited),
				OCIVersion: "1.0.2", Program: "crun 1.8.1"}, {Name: "runc", Program: "runc"}},
			NRI: runtime.NRI{On: true, Socket: "/var/run/nri/nri.sock", SocketExists: true, Listener: 100, Validator: true,
				RegistrationTimeout: 5 * time.Second, RequestTimeout: 2 * time.Second},
		}}},
		plugin: agents.Plugin{
			Unit: true, Processes: []agents.PluginProcess{{Name: "nri-rdma", PID: 200, Config: "/etc/rdma-spec/config.yaml"},
				{Name: "nri-rdma", PID: 201, Validator: true}},
			Policy: agents.PolicyInForce{Exists: true, Lives: true, Source: "/etc/rdma-spec/config.yaml", Version: "0.9"},
			Tool:   "0.9",
		},
		containers: node.Containers{Policy: node.JudgedBy{File: "/run/rdma-spec/policy.yaml"},
			Containers: []node.Container{trainer, other}},
		kubelet: agents.Kubelet{PID: 300, Unit: "kubelet.service", Root: "/var/lib/kubelet", DevicePlugins: true, PodResources: true,
			Allocatable: map[string]int{"cpu": 0, "rdma/hca": 8}},
		cdi: cdi.Files{Files: []cdi.Found{
			{Path: "/etc/cdi/rdma.yaml", Kind: cdi.Kind, Devices: []cdi.Device{{Name: cdi.Kind + "=mlx5_0",
				Nodes: []string{"/dev/infiniband/uverbs0"}}}},
			{Path: "/etc/cdi/nvidia.yaml", Kind: "nvidia.com/gpu", Problem: "it is not ours to judge"},
		}},
		files: hcatest.RoCENode().Files(),
	}
}

// look runs the checks on a copy of the node.
func (s *sick) look(t *testing.T, checks []doctor.Check) []doctor.Finding {
	t.Helper()
	snapshot := open(t, s.laidOut(t, nil))
	snapshot.Containers = func() (node.Containers, error) {
		if slices.Contains(s.unanswered, "listing.json") {
			return node.Containers{}, errors.New("the support bundle contains no response for listing.json")
		}
		return s.containers, nil
	}
	snapshot.Listing = func() (node.Listing, error) {
		if slices.Contains(s.unanswered, "listing.json") {
			return node.Listing{}, errors.New("the support bundle contains no response for listing.json")
		}
		return s.listing(t, snapshot.Root), nil
	}
	snapshot.Undeclared = sayOnce(t)
	return doctor.Run(t.Context(), snapshot, checks)
}

// listing is what the runtime says of the containers.
func (s *sick) listing(t *testing.T, root string) (found node.Listing) {
	t.Helper()
	inventory, err := hca.List(root)
	if err != nil {
		t.Fatal(err)
	}
	devices := slices.Clone(inventory.Elsewhere)
	for _, h := range inventory.HCAs {
		devices = append(devices, h.Devices...)
	}
	found.Waiting = s.waiting
	found.Strangers = s.strangers
	for _, q := range s.plugin.Processes {
		if q.InContainer {
			l := node.Listed{Container: cri.Container{PID: q.PID}}
			l.Namespace, l.Pod, l.Name = "rdma-spec", fmt.Sprintf("nri-rdma-%d", q.PID), "nri-rdma"
			found.Containers = append(found.Containers, l)
		}
	}
	for _, r := range s.runtimes.Runtimes {
		found.Runtimes = append(found.Runtimes, cri.Identity{Name: r.Name, Socket: r.Socket})
	}
	for _, c := range slices.Concat(s.containers.Containers, s.containers.Outside, s.containers.Others) {
		l := node.Listed{Inside: &c.Inside, Container: cri.Container{Runtime: c.Runtime, Spec: cri.Spec{Env: c.Env}}}
		l.Namespace, l.Pod, l.Name, l.RuntimeHandler = c.Namespace, c.Pod, c.Container, c.Handler
		l.Scope = s.scope
		l.AllDevices, l.MOFED, l.HostNetwork = c.AllDevices, c.Env["NVIDIA_MOFED"] == "enabled", !c.OwnNetwork
		for _, gpu := range c.GPUs {
			l.Devices = append(l.Devices, policy.Device{Path: fmt.Sprintf("/dev/nvidia%d", gpu), Type: "c", Major: 195,
				Minor: int64(gpu)})
		}
		for _, d := range devices {
			if d.Kind.Verbs() && slices.Contains(c.HCAs, d.HCA) {
				l.Devices = append(l.Devices, policy.Device{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)})
			}
		}
		found.Containers = append(found.Containers, l)
	}
	return found
}

// laidOut has the node's files, with its answers and others.
func (s *sick) laidOut(t *testing.T, others map[string]any) hcatest.Files {
	t.Helper()
	files, answers := maps.Clone(s.files), map[string]any{
		"runtimes.json": s.runtimes, "plugin.json": s.plugin, "configured.json": s.configured, "cdi.json": s.cdi,
		"kubelet.json": s.kubelet,
	}
	maps.Copy(answers, others)
	for q, answer := range answers {
		text, err := json.Marshal(answer)
		if err == nil {
			text, err = json.Marshal(node.Answer{JSON: text})
		}
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(s.unanswered, q) {
			files[node.AnswersDir+"/"+q] = string(text)
		}
	}
	return files
}

// drivenBy has HCAs of a driver with an ABI, and one container, whose image has a provider.
func (s *sick) drivenBy(driver, abi, provider string) {
	n := hcatest.RoCENode()
	for i := range n.HCAs {
		n.HCAs[i].Driver = driver
	}
	s.files = n.Files().With(hcatest.Files{
		"sys/devices/pci0000:18/0000:18:00.0/infiniband_verbs/uverbs0/abi_version": abi + "\n"})
	s.container().Providers, s.containers.Containers = providers(provider), s.containers.Containers[:1]
}

func (s *sick) runtime() *runtime.Runtime { return &s.runtimes.Runtimes[0] }

// asDaemonSet has the plugin run in containers, and not as a service.
func (s *sick) asDaemonSet() {
	s.plugin.Unit = false
	for i := range s.plugin.Processes {
		s.plugin.Processes[i].InContainer = true
	}
}

// starved makes a node without the plugin of it, with one container that can register so much.
func (s *sick) starved(n spec.Limit) *node.Container {
	s.plugin, s.containers.Unjudged = agents.Plugin{}, "no policy is in force"
	s.containers.Containers = s.containers.Containers[:1]
	c := s.container()
	c.State, c.Wanted, c.IPCLock, c.Bounding = node.StateUnknown, nil, yes(false), nil
	c.Memlock, c.Registers = both(n), bytesOf(n)
	return c
}

func (s *sick) container() *node.Container { return &s.containers.Containers[0] }

// gidOf is the file of a GID of an HCA that rails makes.
func gidOf(number, index int) string {
	return fmt.Sprintf("%s/ports/1/gids/%d", hcatest.Dir(fmt.Sprintf("mlx5_%d", number), railAt(number)), index)
}

func railAt(number int) string { return fmt.Sprintf("0000:%02x:00.0", 0x18+number) }

// rails gives the container a network of its own, with an interface of each of several HCAs, called net1 and so on as
// in every pod. Each has an address, in a subnet of 24 bits or, of IPv6, 64, which is the GID at index 10 of its HCA.
func (s *sick) rails(ips ...string) {
	n, c := hcatest.RoCENode(), s.container()
	hcas := n.HCAs
	n.HCAs, c.HCAs, c.OwnNetwork, c.Links = nil, nil, true, nil
	for i := range max(2, len(ips)) {
		h := hcas[min(i, 1)]
		h.Name, h.PCI = fmt.Sprintf("mlx5_%d", i), railAt(i)
		h.Ports = []hcatest.Port{{LinkLayer: "Ethernet", Rate: h.Ports[0].Rate, Netdevs: []string{fmt.Sprintf("eth%d", i)},
			Foreign: []string{"net1"}}}
		n.HCAs = append(n.HCAs, h)
	}
	s.files = n.Files()
	for i, ip := range ips {
		address := netip.MustParseAddr(ip)
		mapped := address.As16()
		s.files[gidOf(i, 10)] = netip.AddrFrom16(mapped).StringExpanded() + "\n"
		own := netip.MustParseAddr(fmt.Sprintf("fe80::%d", i+1))
		s.files[gidOf(i, 9)] = own.StringExpanded() + "\n"
		c.HCAs, c.Addresses = append(c.HCAs, fmt.Sprintf("mlx5_%d", i)), append(c.Addresses, address, own)
		subnet, _ := address.Prefix(map[bool]int{true: 24, false: 64}[address.Is4()])
		c.Links = append(c.Links, process.Link{Name: fmt.Sprintf("net%d", i+1), Addresses: []netip.Addr{own},
			Subnets: []netip.Prefix{subnet}})
	}
}

func checks() []doctor.Check { return everything.All() }
