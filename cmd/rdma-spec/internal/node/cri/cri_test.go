// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

func connected(t *testing.T, endpoint, root string) *Runtime {
	t.Helper()
	all, _, err := Connect(t.Context(), endpoint, root, AnswersWithin)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d runtimes, %v", len(all), err)
	}
	t.Cleanup(all[0].Close)
	return all[0]
}

// A container has ended by itself if the runtime knows its exit code, and nobody killed it.
func TestEnded(t *testing.T) {
	fake := critest.Serve(t, critest.Options{},
		critest.Container{ID: "runs"},
		critest.Container{ID: "done", Exited: true},
		critest.Container{ID: "failed", Exited: true, ExitCode: 1},
		critest.Container{ID: "killed", Exited: true, ExitCode: 137},
		critest.Container{ID: "unknown to containerd", Exited: true, ExitCode: 255},
		critest.Container{ID: "unknown to CRI-O", Exited: true, ExitCode: -1},
		critest.Container{ID: "sick", Fails: errors.New("its shim does not answer")},
	)
	r := connected(t, "unix://"+fake.Socket, "/nowhere")
	for id, want := range map[string]bool{"runs": false, "done": true, "failed": true, "killed": false,
		"unknown to containerd": false, "unknown to CRI-O": false, "removed": false} {
		if got, err := r.Ended(t.Context(), id); err != nil || got != want {
			t.Errorf("%s: %t, %v; want %t", id, got, err, want)
		}
	}
	if _, err := r.Ended(t.Context(), "sick"); err == nil {
		t.Error("a container that cannot be asked about: no error")
	}
}

func TestContainers(t *testing.T) {
	minus, major, limit := int64(-1), int64(231), int64(1<<30)
	rdma := specs.Spec{
		Process: &specs.Process{
			Env: []string{"TOKEN=secret", "NCCL_IB_GID_INDEX=5", "NCCL_IB_HCA==mlx5_0:1,mlx5_1", "NCCL_SOCKET_IFNAME=^lo",
				"UCX_NET_DEVICES=all", "MY_NCCL_IB_HCA=x", `SAID="NCCL_IB_HCA=quoted"`, `NCCL_IB_HCA=a"b`,
				"NVIDIA_MOFED=enabled"},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 1}, {Type: "RLIMIT_MEMLOCK", Soft: 1 << 23,
				Hard: 1 << 23}, {Type: "RLIMIT_MEMLOCK", Soft: 1 << 24, Hard: math.MaxInt64}},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: []string{"CAP_CHOWN"}, Effective: []string{"CAP_CHOWN"},
			},
		},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192},
				{Path: "/dev/sda", Type: "b", Major: 8}},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &limit},
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Major: &major,
					Minor: &minus, Access: "rwm"}},
			},
		},
	}
	privileged := specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}}
	fake := critest.Serve(t, critest.Options{},
		critest.Container{Namespace: "ml", Pod: "train-1", Name: "main", ID: "b", PID: 77, Spec: privileged},
		critest.Container{Namespace: "ml", Pod: "train-0", Name: "main", ID: "a", Handler: "nvidia", PID: 42, Spec: rdma,
			Annotations: map[string]string{"rdma.noderesource.dev": "true", "another": "x"}},
		critest.Container{Namespace: "ml", Pod: "done", Name: "main", ID: "c", Exited: true},
		critest.Container{Namespace: "ml", Pod: "gone", Name: "main", ID: "d", Gone: true},
		critest.Container{Namespace: "a", Pod: "odd", Name: "main", ID: "e", Info: `{"pid": 5, "runtimeSpec": {"linux": 3}}`},
		critest.Container{Namespace: "a", Pod: "old", Name: "main", ID: "f", Info: `{"pid": 6}`},
		critest.Container{Namespace: "a", Pod: "sick", Name: "main", ID: "g", Fails: errors.New("its shim does not answer")},
	)
	r := connected(t, "unix://"+fake.Socket, "/nowhere")
	if r.Name != "containerd" || r.Version != "v2.4.2" {
		t.Errorf("runtime %s %s", r.Name, r.Version)
	}
	got, err := Containers(t.Context(), []*Runtime{r})
	if err != nil {
		t.Fatal(err)
	}
	want := []Container{
		{Container: policy.Container{Namespace: "a", Pod: "odd", Name: "main"}, ID: "e", SandboxID: "pod-of-e"},
		{Container: policy.Container{Namespace: "a", Pod: "old", Name: "main"}, ID: "f", SandboxID: "pod-of-f", PID: 6},
		{Container: policy.Container{Namespace: "a", Pod: "sick", Name: "main"}, ID: "g", SandboxID: "pod-of-g"},
		{Container: policy.Container{
			Namespace: "ml", Pod: "train-0", Name: "main", RuntimeHandler: "nvidia",
			Annotations: map[string]string{"rdma.noderesource.dev": "true"},
			Devices: []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192},
				{Path: "/dev/sda", Type: "b", Major: 8}},
			MemoryLimit: 1 << 30, MOFED: true,
		}, ID: "a", SandboxID: "pod-of-a", PID: 42, Spec: Spec{
			Memlock: spec.Rlimit{Soft: 1 << 24, Hard: spec.Unlimited}, MemlockKnown: true,
			Bounding: []string{"CAP_CHOWN"}, Env: Env{"NCCL_IB_GID_INDEX": "5", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1",
				"NCCL_SOCKET_IFNAME": "^lo", "NVIDIA_MOFED": "enabled", "UCX_NET_DEVICES": "all"},
		}},
		{Container: policy.Container{Namespace: "ml", Pod: "train-1", Name: "main", AllDevices: true}, ID: "b",
			SandboxID: "pod-of-b", PID: 77},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Container{}, "Problem", "Runtime")); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	for i, words := range []string{"cannot be read", "does not contain runtimeSpec, the field", "its shim does not answer", "", ""} {
		if problem := got[i].Problem; (problem == "") != (words == "") || !strings.Contains(problem, words) {
			t.Errorf("%s: problem %v, want %q", got[i].Pod, problem, words)
		}
	}
}

// A container is in a sandbox by what its runtime says of the sandbox's runtime, or of its spec.
func TestContainers_sandboxed(t *testing.T) {
	for info, want := range map[string]bool{
		`{"pid": 5, "runtimeType": "io.containerd.kata.v2", "runtimeSpec": {}}`:                                   true,
		`{"pid": 5, "runtimeType": "io.containerd.krun.v2", "runtimeSpec": {}}`:                                   true,
		`{"pid": 5, "runtimeType": "io.containerd.runc.v2", "runtimeSpec": {}}`:                                   false,
		`{"pid": 5, "runtimeSpec": {"annotations": {"io.katacontainers.pkg.oci.container_type": "pod_sandbox"}}}`: true, // CRI-O's
		`{"pid": 5, "runtimeSpec": {"annotations": {"io.kubernetes.cri-o.Name": "a"}}}`:                           false,
	} {
		fake := critest.Serve(t, critest.Options{}, critest.Container{Namespace: "ml", Pod: "vm", Name: "main", ID: "a",
			Handler: "untrusted", Info: info})
		all, err := Containers(t.Context(), []*Runtime{connected(t, "unix://"+fake.Socket, "/nowhere")})
		if err != nil || len(all) != 1 || all[0].Problem != "" || all[0].Sandboxed != want {
			t.Errorf("%s: %v, %+v", info, err, all)
		}
	}
}

// Of a status that is refused, nothing is known; what a runtime writes is read as it was meant.
func FuzzVerboseStatus(f *testing.F) {
	for _, text := range []string{
		`{"pid":42,"runtimeSpec":{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":1},{"type":"RLIMIT_MEMLOCK","hard":2,"soft":2}],` +
			`"capabilities":{"bounding":["CAP_CHOWN"]}},"linux":{"devices":[{"path":"/dev/x","type":"c","major":1,"minor":2}],"resources":{"devices":[{"allow":true,"access":"rwm"}],"memory":{"limit":1}}}}}`,
		`{"pid":1,"runtimeSpec":{"linux":{"resources":{"devices":[{"allow":true,"access":"rwm"},{"allow":false,"access":"rwm"},{"allow":true,"type":"c","access":"rw"}]}}}}`,
		`{"pid":1,"runtimeSpec":{"linux":{"devices":[{"path":"/dev/x"}],"resources":[]}}}`,
		`{"runtimeSpec":{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}}`,
		`{"pid":-1,"runtimeSpec":null}`, `{"runtimeSpec":{}}`, `{"runtimeSpec":{"linux":{"devices":[{}]}},"pid":"1"}`, `{}`,
		``,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c Container
		if err := c.read(map[string]string{"info": text}); err != nil {
			if diff := cmp.Diff(Container{PID: c.PID}, c); diff != "" {
				t.Errorf("read from %q, which is refused: %s", text, diff)
			}
			return
		}
		var status struct {
			PID         int         `json:"pid"`
			RuntimeSpec *specs.Spec `json:"runtimeSpec"`
		}
		if json.Unmarshal([]byte(text), &status) != nil || status.RuntimeSpec == nil {
			return // no runtime writes this
		}
		written, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		c = Container{}
		if err := c.read(map[string]string{"info": string(written)}); err != nil {
			t.Fatalf("%v: %s", err, written)
		}
		want := c
		want.PID, want.Spec, want.Devices, want.MemoryLimit = status.PID, Spec{Env: c.Spec.Env}, nil, 0
		if p := status.RuntimeSpec.Process; p != nil {
			for _, l := range p.Rlimits {
				if l.Type == "RLIMIT_MEMLOCK" {
					want.Spec.Memlock, want.Spec.MemlockKnown = spec.Rlimit{Soft: spec.Limit(l.Soft), Hard: spec.Limit(l.Hard)}, true
				}
			}
			if p.Capabilities != nil {
				want.Spec.Bounding = p.Capabilities.Bounding
			}
		}
		if l := status.RuntimeSpec.Linux; l != nil {
			for _, d := range l.Devices {
				want.Devices = append(want.Devices, policy.Device{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
			}
			if l.Resources != nil && l.Resources.Memory != nil && l.Resources.Memory.Limit != nil {
				want.MemoryLimit = *l.Resources.Memory.Limit
			}
			if c.AllDevices && (l.Resources == nil || !slices.ContainsFunc(l.Resources.Devices,
				func(r specs.LinuxDeviceCgroup) bool { return r.Allow })) {
				t.Errorf("all devices are allowed in %q, by no rule", written)
			}
		}
		if diff := cmp.Diff(want, c, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-meant +read):\n%s", diff)
		}
	})
}
