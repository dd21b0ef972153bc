// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/wire"
	"github.com/rdma-spec/rdma-spec/plugin/wire/wiretest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// readOf returns what the plugin finds in a validator's request that comes over the wire. All other requests are parts
// of one.
func readOf(t testing.TB, request *api.ValidateContainerAdjustmentRequest) *api.ValidateContainerAdjustmentRequest {
	t.Helper()
	encoded, err := proto.Marshal(request)
	must.Succeed(t, err)
	kept, err := readFields().Keep(nil, encoded)
	must.Succeed(t, err)
	read := &api.ValidateContainerAdjustmentRequest{}
	must.Succeed(t, proto.Unmarshal(kept, read))
	return read
}

func readFields() *wire.Fields {
	reads := (*Plugin)(nil).Reads()
	return wire.New(&api.ValidateContainerAdjustmentRequest{}, reads.Pod.Below("pod"),
		reads.Container.Below("container"), reads.Adjustment.Below("adjust"))
}

// TestReads_Decisions compares decisions about random containers, and the adjustments, with those about what is read of
// them: a field that is missing in Reads is missed here.
func TestReads_Decisions(t *testing.T) {
	root := hcatest.V100(t)
	p := New(Options{Policy: mustPolicy(t, `
optIn: {namespaces: [a], mofedRuntimeHandlers: [nvidia]}
inject: {namespaces: [b]}
rules: [{name: limited, match: {namespaces: [c]}, memlock: memory-limit}]`),
		Inventory: inventoryOf(t, root), Log: quiet()})
	verbs := firstVerbs(t, root)
	words := []string{"", "a", "b", "c", "main", "nvidia", "true", "false", "{memlock: 1Mi}", "{devices: all}", "network", "rwm",
		"NVIDIA_MOFED=enabled", "NVIDIA_MOFED=", policy.AnnotationKey, policy.AnnotationKey + "/pod",
		policy.AnnotationKey + "/container.main", spec.RlimitMemlock, verbs.Path, "devices.gke.io",
		"nvidia.cdi.k8s.io/container.main", "- path: " + verbs.Path}
	decisions := map[string]int{}
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 66))
		request := &api.ValidateContainerAdjustmentRequest{
			Pod: &api.PodSandbox{}, Container: &api.Container{}, Adjust: &api.ContainerAdjustment{}}
		wiretest.Fill(request.GetPod(), random, words)
		wiretest.Fill(request.GetContainer(), random, words)
		wiretest.Fill(request.GetAdjust(), random, words)
		for _, d := range append(request.GetContainer().GetLinux().GetDevices(),
			request.GetAdjust().GetLinux().GetDevices()...) {
			if random.IntN(2) == 0 {
				d.Type, d.Major, d.Minor = "c", int64(verbs.Major), int64(verbs.Minor)
			}
		}
		read := readOf(t, request)
		want, got := seenOf(t, p, request), seenOf(t, p, read)
		decisions[want.decision]++
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(seen{}), protocmp.Transform()); diff != "" {
			t.Fatalf("seed %d: of what is read (-want +got):\n%s", seed, diff)
		}
	}
	for _, kind := range []string{"grant", "refusal", "alone"} {
		if decisions[kind] < 20 {
			t.Errorf("of the random containers, %v: too few to show anything", decisions)
		}
	}
}

// seen is what the plugin makes of a request.
type seen struct {
	container, adjusted policy.Container
	sandbox, id         string
	listedIn            string
	state               api.ContainerState
	pid                 uint32
	adjustment          *api.ContainerAdjustment
	err, decision       string
}

func seenOf(t testing.TB, p *Plugin, request *api.ValidateContainerAdjustmentRequest) seen {
	t.Helper()
	pod, ctr := request.GetPod(), request.GetContainer()
	s := seen{container: ContainerOf(pod, ctr), sandbox: pod.GetId(), id: ctr.GetId(), listedIn: ctr.GetPodSandboxId(),
		state: ctr.GetState(), pid: ctr.GetPid(),
		decision: "alone"}
	adjustment, _, err := p.CreateContainer(t.Context(), pod, ctr)
	s.adjustment = adjustment
	switch {
	case err != nil:
		s.err, s.decision = err.Error(), "refusal"
	case adjustment != nil:
		s.decision = "grant"
	}
	s.adjusted = adjusted(s.container, request.GetAdjust())
	return s
}

// TestReads_Small checks that little is decoded of a container, whatever its author writes.
func TestReads_Small(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	many := map[string]string{"example.com/notes": long}
	read := readOf(t, &api.ValidateContainerAdjustmentRequest{
		Pod: &api.PodSandbox{Id: "s", Uid: long, Namespace: "ml", Name: "train", RuntimeHandler: "nvidia", Labels: many,
			Annotations: map[string]string{policy.AnnotationKey + "/container.main": "true", "example.com/notes": long},
			Linux:       &api.LinuxPodSandbox{CgroupParent: long, Namespaces: []*api.LinuxNamespace{{Type: "network"}}}},
		Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main", Labels: many, Annotations: many,
			Args: []string{long}, Env: []string{long, "NVIDIA_MOFED=enabled"}, Mounts: []*api.Mount{{Source: long}},
			Hooks: &api.Hooks{Prestart: []*api.Hook{{Path: long}}}, StatusMessage: long, Image: &api.Image{Name: long},
			Rlimits: []*api.POSIXRlimit{{Type: spec.RlimitMemlock, Hard: 2, Soft: 1}},
			Linux: &api.LinuxContainer{
				Devices:       []*api.LinuxDevice{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192}},
				SeccompPolicy: &api.LinuxSeccomp{Syscalls: []*api.LinuxSyscall{{Names: []string{long}}}},
				Resources: &api.LinuxResources{Unified: many, Memory: &api.LinuxMemory{Limit: api.Int64(3)},
					Devices: []*api.LinuxDeviceCgroup{{Allow: true, Type: "a", Access: "rwm"}}}}},
		Adjust: &api.ContainerAdjustment{Annotations: many, Args: []string{long}},
	})
	if n := proto.Size(read); n > 300 {
		t.Errorf("%d bytes are read of a pod and its container, want 300 at most", n)
	}
}

// kubeletContainer is containerd's request for a container of the kubelet's, as it came in the test cluster.
func kubeletContainer(t testing.TB) *api.CreateContainerRequest {
	t.Helper()
	request := &api.CreateContainerRequest{}
	text := repository.Read(t, "test/bench/testdata/kubelet-container.json")
	must.Succeed(t, protojson.Unmarshal([]byte(text), request))
	return request
}

// TestReads_Allocations bounds the cost of a request, from its bytes to its answer: it does not depend on the machine.
func TestReads_Allocations(t *testing.T) {
	root := hcatest.V100(t)
	p := New(Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root), Log: quiet()})
	fields := readFields()
	plain, rdma := kubeletContainer(t), kubeletContainer(t)
	rdma.Container.Linux.Devices = verbsContainer(t, root).GetLinux().GetDevices()
	for name, test := range map[string]struct {
		request *api.CreateContainerRequest
		most    float64
	}{
		"plain":  {plain, 40},
		"an HCA": {rdma, 88},
	} {
		encoded, err := proto.Marshal(test.request)
		must.Succeed(t, err)
		buffer := make([]byte, 0, len(encoded))
		got := testing.AllocsPerRun(200, func() {
			kept, _ := fields.Keep(buffer, encoded)
			request := &api.CreateContainerRequest{}
			_ = proto.Unmarshal(kept, request)
			_, _, _ = p.CreateContainer(t.Context(), request.GetPod(), request.GetContainer())
		})
		t.Logf("%s: %v allocations", name, got)
		if got > test.most {
			t.Errorf("%s: %v allocations, want %v at most", name, got, test.most)
		}
	}
}
