// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// hcas is the number of HCAs on the node.
const hcas = 8

// node creates a copied root with eight HCAs. It returns the root, and the devices of all HCAs: eight uverbs, and
// rdma_cm.
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

// order is a container to create.
type order struct {
	pod    *api.PodSandbox
	ctr    *api.Container
	stored func(*api.Container) // writes the container to containerd's store before NRI sends the request; nil if the plugin does not read the store
}

// with returns the order with additional annotations.
func (o order) with(annotations map[string]string) order {
	o.pod = proto.Clone(o.pod).(*api.PodSandbox)
	for k, v := range annotations {
		o.pod.Annotations[k] = v
	}
	return o
}

var containers atomic.Uint64

// newID returns a new ID of a container or sandbox, with the length of containerd's IDs.
func newID() string { return fmt.Sprintf("%064x", containers.Add(1)) }

// recorded is containerd's request for a container of the kubelet's, as it came in the test cluster: see
// TestClusterRequest.
//
//go:embed testdata/kubelet-container.json
var recorded []byte

// plain returns a container without RDMA.
func plain() order {
	request := &api.CreateContainerRequest{}
	if err := protojson.Unmarshal(recorded, request); err != nil {
		panic(err) // cannot fail, because the file is embedded
	}
	return order{pod: request.GetPod(), ctr: request.GetContainer()}
}

// holding returns a training container into which device plugins have injected HCAs and eight GPUs: the recorded
// container with their devices and device rules, the mounts of the GPUs' driver, and 90 variables.
func holding(devices []hca.Device) order {
	o := plain()
	o.pod.Namespace = "ml"
	add := func(path string, major, minor int64) {
		o.ctr.Linux.Devices = append(o.ctr.Linux.Devices, &api.LinuxDevice{Path: path, Type: "c", Major: major, Minor: minor})
		resources := o.ctr.GetLinux().GetResources()
		resources.Devices = append(resources.Devices, &api.LinuxDeviceCgroup{Allow: true, Type: "c",
			Major: api.Int64(major), Minor: api.Int64(minor), Access: "rwm"})
	}
	for i := range int64(hcas) {
		add(fmt.Sprintf("/dev/nvidia%d", i), 195, i)
	}
	for _, d := range devices {
		add(d.Path, int64(d.Major), int64(d.Minor))
	}
	for i := range 12 {
		library := fmt.Sprintf("/usr/lib/x86_64-linux-gnu/libnvidia-part-%d.so.580.95.05", i)
		o.ctr.Mounts = append(o.ctr.Mounts, &api.Mount{Destination: library, Source: library, Type: "bind",
			Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	for i := len(o.ctr.GetEnv()); i < 90; i++ {
		o.ctr.Env = append(o.ctr.Env, fmt.Sprintf("TRAINER_SETTING_%d=a value that is usual", i))
	}
	return o
}

// asking returns a container whose pod requests the node's HCAs from nri-rdma.
func asking() order {
	o := plain()
	o.pod.Namespace = "ml"
	return o.with(map[string]string{"rdma.noderesource.dev/pod": "true"})
}

// askingPeers returns a container whose pod requests the same from the peers.
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

// write writes a temporary file, and returns its path.
func write(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), name)
	scratch.File(t, file, content, 0o600)
	return file
}

// fixedAdjustment writes an adjustment to a file for the reference plugin, and returns the file's path.
func fixedAdjustment(t testing.TB, adjustment *api.ContainerAdjustment) string {
	t.Helper()
	data, err := proto.Marshal(adjustment)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "adjustment", string(data))
}
