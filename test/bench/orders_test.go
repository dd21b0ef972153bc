// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// hcas is how many HCAs the node has.
const hcas = 8

// node makes a copied root with eight HCAs and gives the devices of all of them: eight uverbs, and rdma_cm.
func node(t testing.TB) (root string, devices []hca.Device) {
	t.Helper()
	described := hcatest.EightHCANode()
	described.HCAs = described.HCAs[:hcas]
	root = described.Files().Root(t)
	found, err := hca.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range found.HCAs {
		verbs, err := h.Usable(false)
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, verbs...)
	}
	return root, append(devices, *found.RDMACM)
}

// order is a container that is to be created.
type order struct {
	pod    *api.PodSandbox
	ctr    *api.Container
	stored func(*api.Container) // puts it into containerd's store before NRI is asked; nil if it is not read there
}

// with is the order with more annotations.
func (o order) with(annotations map[string]string) order {
	o.pod = proto.Clone(o.pod).(*api.PodSandbox)
	for k, v := range annotations {
		o.pod.Annotations[k] = v
	}
	return o
}

var containers atomic.Uint64

// newID returns a new ID of a container or sandbox, as long as containerd's.
func newID() string { return fmt.Sprintf("%064x", containers.Add(1)) }

// plain is a container that has nothing to do with RDMA, with about what the kubelet gives to every container.
func plain() order {
	const container = "main"
	o := order{
		pod: &api.PodSandbox{
			Id: newID(), Name: "web-6f7c9d5b8-x2x7k", Namespace: "shop", Uid: "7d0f7c1c-1b9e-4a57-8a77-d0b9b6a8c0de",
			Labels: map[string]string{"app": "web", "pod-template-hash": "6f7c9d5b8", "version": "v42"},
			Annotations: map[string]string{
				"kubernetes.io/config.seen": "2026-11-21T20:09:00.000000000Z", "kubernetes.io/config.source": "api",
				"prometheus.io/scrape": "true", "prometheus.io/port": "8080",
			},
			Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/burstable/pod7d0f7c1c-1b9e-4a57-8a77-d0b9b6a8c0de"},
		},
		ctr: &api.Container{
			Name: container, State: api.ContainerState_CONTAINER_CREATED,
			Labels: map[string]string{"io.kubernetes.container.name": container, "io.kubernetes.pod.name": "web-6f7c9d5b8-x2x7k",
				"io.kubernetes.pod.namespace": "shop"},
			Annotations: map[string]string{
				"io.kubernetes.cri.container-name": container, "io.kubernetes.cri.container-type": "container",
				"io.kubernetes.cri.image-name":   "registry.example/shop/web:v42",
				"io.kubernetes.cri.sandbox-name": "web-6f7c9d5b8-x2x7k",
			},
			Args: []string{"/usr/bin/web", "--listen", ":8080"},
			Linux: &api.LinuxContainer{
				Resources: &api.LinuxResources{
					Memory: &api.LinuxMemory{Limit: api.Int64(int64(1 << 30))},
					Cpu:    &api.LinuxCPU{Shares: api.UInt64(uint64(512))},
				},
				CgroupsPath: "/kubepods/burstable/pod7d0f7c1c-1b9e-4a57-8a77-d0b9b6a8c0de/web",
			},
			Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
		},
	}
	o.ctr.PodSandboxId = o.pod.Id
	for i := range 12 {
		o.ctr.Env = append(o.ctr.Env, fmt.Sprintf("SERVICE_%d_PORT_8080_TCP_ADDR=10.96.0.%d", i, i))
	}
	for _, destination := range strings.Fields("/proc /dev /dev/pts /dev/mqueue /sys /sys/fs/cgroup /etc/hosts " +
		"/dev/termination-log /etc/hostname " +
		"/etc/resolv.conf /dev/shm /var/run/secrets/kubernetes.io/serviceaccount") {
		o.ctr.Mounts = append(o.ctr.Mounts, &api.Mount{
			Destination: destination, Type: "bind", Source: "/var/lib/kubelet/pods/7d0f7c1c-1b9e-4a57-8a77-d0b9b6a8c0de" +
				destination,
			Options: []string{"rbind", "rprivate", "rw"},
		})
	}
	return o
}

// holding is a container that a device plugin has given devices, of HCAs and of eight GPUs.
func holding(devices []hca.Device) order {
	o := plain()
	o.pod.Namespace = "ml"
	for i := range hcas {
		o.ctr.Linux.Devices = append(o.ctr.Linux.Devices, &api.LinuxDevice{Path: fmt.Sprintf("/dev/nvidia%d", i), Type: "c",
			Major: 195, Minor: int64(i)})
	}
	for _, d := range devices {
		o.ctr.Linux.Devices = append(o.ctr.Linux.Devices, &api.LinuxDevice{Path: d.Path, Type: "c",
			Major: int64(d.Major), Minor: int64(d.Minor)})
	}
	return o
}

// asking is a container whose pod asks for the node's HCAs.
func asking() order {
	o := plain()
	o.pod.Namespace = "ml"
	return o.with(map[string]string{"rdma.noderesource.dev/pod": "true"})
}

// askingPeers is a container whose pod asks the peers for what asking asks nri-rdma.
func askingPeers(devices []hca.Device) order {
	var list strings.Builder
	for _, d := range devices {
		fmt.Fprintf(&list, "- {path: %s, type: c, major: %d, minor: %d, file_mode: %d}\n", d.Path, d.Major, d.Minor, 0o666)
	}
	return plain().with(map[string]string{
		"ulimits.noderesource.dev/container.main": fmt.Sprintf("- {type: memlock, hard: %d, soft: %[1]d}\n",
			uint64(spec.Unlimited)),
		"devices.noderesource.dev/container.main": list.String(),
	})
}

// write writes a file of the test's own.
func write(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(scratch.Folder(t), name)
	scratch.File(t, file, content, 0o600)
	return file
}

// fixedAdjustment writes an adjustment for the reference plugin.
func fixedAdjustment(t testing.TB, adjustment *api.ContainerAdjustment) string {
	t.Helper()
	data, err := proto.Marshal(adjustment)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "adjustment", string(data))
}
