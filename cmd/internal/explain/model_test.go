// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// modelPod is a pod from which both a manifest and the objects of an NRI event are made.
type modelPod struct {
	kind         string
	namespace    string
	runtimeClass string
	annotations  map[string]string
	memory       string // the pod's own limit
	claim        bool   // it has a DRA claim that no container names
	containers   []modelContainer
}

type modelContainer struct {
	name          string
	init, sidecar bool
	ephemeral     bool
	memory        string
	held          map[string]string // extended resources and others, by name
	claims        []string
	privileged    bool
	blockDevice   string // a path
	mofed         string // NVIDIA_MOFED
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomPod makes a pod, of values that policies make a difference between.
func randomPod(r *rand.Rand) modelPod {
	p := modelPod{
		kind:         pick(r, "Pod", "Deployment", "CronJob", "MPIJob", "List"),
		namespace:    pick(r, "", "ml-a", "ml-b", "guest-1", "web"),
		runtimeClass: pick(r, "", "", "nvidia", "kata-qemu"),
		memory:       pick(r, "", "", "", "8Gi"),
		annotations:  map[string]string{"example.com/other": "x"},
	}
	for i := range 1 + r.IntN(3) {
		p.containers = append(p.containers, randomContainer(r, fmt.Sprintf("c%d", i)))
	}
	p.claim = r.IntN(10) == 0
	// a pod has an ordinary one
	p.containers[0].init, p.containers[0].sidecar, p.containers[0].ephemeral = false, false, false
	for range pick(r, 0, 1, 1, 2) {
		key := "rdma.noderesource.dev" + pick(r, "", "/pod", "/container.c0", "/container.c1")
		p.annotations[key] = pick(r, "true", "true", "true", "false", "", "ture", "{memlock: 1Gi}", "{memlock: unlimited}",
			"{memlock: memory-limit}",
			"{ipcLock: true}", "{ipcLock: false, devices: all}", "{devices: none}", "{devices: [mlx5_0]}",
			"{devices: [rxe2, nope]}", "{memlock: 100Gi, devices: all}",
			"{devices: [../x]}", "{unknown: 1}", "memlock: &a 1Gi")
	}
	for range pick(r, 0, 0, 1, 2) {
		key := pick(r, "devices.gke.io", "nvidia.cdi.k8s.io", "cdi-devices.nri.io") + pick(r, "", "/pod", "/container.c0")
		p.annotations[key] = pick(r, "", "- path: /dev/infiniband/uverbs0", "- path: /dev/infiniband/uverbs7",
			"- path: /dev/nvidia0", "nvidia.com/gpu=0", "[example.com/hca=mlx5_0]", "{")
	}
	return p
}

func randomContainer(r *rand.Rand, name string) modelContainer {
	c := modelContainer{
		name:        name,
		memory:      pick(r, "", "4Gi", "128M", "1.5Gi"),
		privileged:  r.IntN(8) == 0,
		blockDevice: pick(r, "", "", "/dev/infiniband/uverbs0", "/dev/xvda"),
		mofed:       pick(r, "", "", "enabled", "disabled"),
		held:        map[string]string{},
	}
	c.init = r.IntN(4) == 0
	c.sidecar = c.init && r.IntN(2) == 0
	if c.ephemeral = !c.init && r.IntN(8) == 0; c.ephemeral {
		return c // which can hold nothing
	}
	for range pick(r, 0, 0, 1, 2) {
		c.held[pick(r, "rdma/rdma_v100", "nvidia.com/hostdev", "nvidia.com/gpu", "example.com/none",
			"pod.alpha.kubernetes.io/x", "hugepages-2Mi", deviceClass)] = pick(r, "1", "2", "0")
	}
	if r.IntN(8) == 0 {
		c.claims = []string{"nic"}
	}
	return c
}

// deviceClass is a resource that asks for a DRA driver's devices.
const deviceClass = "deviceclass.resource.kubernetes.io/nic.example.com"

// dynamic says whether DRA drivers give the container devices of its own.
func (c modelContainer) dynamic() bool {
	return len(c.claims) > 0 || c.held[deviceClass] != "" && c.held[deviceClass] != "0"
}

// extended says whether device plugins advertise a resource of that name.
func extendedResource(name string) bool {
	return slices.Contains([]string{"rdma/rdma_v100", "nvidia.com/hostdev", "nvidia.com/gpu", "example.com/none"}, name)
}

// holds gives the extended resources of a container, sorted.
func (c modelContainer) holds() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.held)) {
		if extendedResource(name) && c.held[name] != "0" {
			names = append(names, name)
		}
	}
	return names
}

// manifest writes the pod as its author would.
func (p modelPod) manifest(t *testing.T) []byte {
	t.Helper()
	spec := map[string]any{}
	lists := map[string][]any{}
	for _, c := range p.containers {
		list := "containers"
		if c.init {
			list = "initContainers"
		}
		if c.ephemeral {
			list = "ephemeralContainers"
		}
		lists[list] = append(lists[list], c.manifest())
	}
	for list, containers := range lists {
		spec[list] = containers
	}
	if p.claim {
		spec["resourceClaims"] = []any{map[string]any{"name": "shared"}}
	}
	if p.runtimeClass != "" {
		spec["runtimeClassName"] = p.runtimeClass
	}
	if p.memory != "" {
		spec["resources"] = map[string]any{"limits": map[string]any{"memory": p.memory}}
	}
	template := map[string]any{"metadata": map[string]any{"annotations": p.annotations}, "spec": spec}
	text, err := yaml.Marshal(p.wrap(template))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wrap puts a pod template into an object of the pod's kind.
func (p modelPod) wrap(template map[string]any) map[string]any {
	metadata := map[string]any{"name": "trainer"}
	if p.namespace != "" {
		metadata["namespace"] = p.namespace
	}
	object := func(kind string, spec any) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
	}
	switch p.kind {
	case "Deployment":
		return object("Deployment", map[string]any{"template": template})
	case "CronJob":
		return object("CronJob", map[string]any{"jobTemplate": map[string]any{"spec": map[string]any{"template": template}}})
	case "MPIJob":
		return object("MPIJob", map[string]any{"mpiReplicaSpecs": map[string]any{"Worker": map[string]any{"replicas": 2,
			"template": template}}})
	}
	maps.Copy(template["metadata"].(map[string]any), metadata)
	template["apiVersion"], template["kind"] = "v1", "Pod"
	if p.kind == "List" {
		return map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{template}}
	}
	return template
}

func (c modelContainer) manifest() map[string]any {
	limits := map[string]any{}
	for name, amount := range c.held {
		limits[name] = amount
	}
	if c.memory != "" {
		limits["memory"] = c.memory
	}
	resources := map[string]any{"limits": limits}
	var claims []any
	for _, name := range c.claims {
		claims = append(claims, map[string]any{"name": name})
	}
	if claims != nil {
		resources["claims"] = claims
	}
	m := map[string]any{"name": c.name, "resources": resources,
		"securityContext": map[string]any{"privileged": c.privileged}}
	if c.sidecar {
		m["restartPolicy"] = "Always"
	}
	if c.blockDevice != "" {
		m["volumeDevices"] = []any{map[string]any{"name": "data", "devicePath": c.blockDevice}}
	}
	if c.mofed != "" {
		m["env"] = []any{map[string]any{"name": "A", "value": "B"},
			map[string]any{"name": "NVIDIA_MOFED", "value": c.mofed}}
	}
	return m
}

// sandbox is the pod as a kubelet and containerd make it.
func (p modelPod) sandbox() *api.PodSandbox {
	pod := &api.PodSandbox{
		Id: "sandbox", Name: "trainer-x7f2p", Uid: "uid", Namespace: p.namespace, RuntimeHandler: p.runtimeClass,
		Labels:      map[string]string{"io.kubernetes.pod.name": "trainer-x7f2p"},
		Annotations: map[string]string{"kubernetes.io/config.source": "api"},
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	maps.Copy(pod.Annotations, p.annotations)
	return pod
}

// container is a container as a kubelet, a device plugin (injected) and containerd make it.
func (p modelPod) container(t *testing.T, c modelContainer, node *hca.Inventory, injected bool) *api.Container {
	t.Helper()
	ctr := &api.Container{Id: "container", PodSandboxId: "sandbox", Name: c.name, Env: []string{"PATH=/usr/bin"},
		Linux: &api.LinuxContainer{
			Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		}}
	if c.mofed != "" {
		ctr.Env = append(ctr.Env, "A=B", "NVIDIA_MOFED="+c.mofed)
	}
	memory := c.memory
	if memory == "" {
		memory = p.memory
	}
	if memory != "" {
		q, err := resource.ParseQuantity(memory)
		if err != nil {
			t.Fatal(err)
		}
		ctr.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(q.Value())}
	}
	if c.blockDevice != "" {
		ctr.Linux.Devices = append(ctr.Linux.Devices, &api.LinuxDevice{Path: c.blockDevice, Type: "b"})
	}
	switch {
	case c.privileged:
		ctr.Linux.Resources.Devices = []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		for _, h := range node.HCAs {
			ctr.Linux.Devices = append(ctr.Linux.Devices, nriDevices(h.Devices)...)
		}
	// all that belongs to the first HCA, as device plugins do
	case injected && (p.claim || c.dynamic() || len(c.holds()) > 0):
		ctr.Linux.Devices = append(ctr.Linux.Devices, nriDevices(node.HCAs[0].Devices)...)
		ctr.Linux.Devices = append(ctr.Linux.Devices, nriDevices([]hca.Device{*node.RDMACM})...)
	}
	return ctr
}

func nriDevices(devices []hca.Device) []*api.LinuxDevice {
	var out []*api.LinuxDevice
	for _, d := range devices {
		out = append(out, &api.LinuxDevice{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor)})
	}
	return out
}
