// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"
	"weak"

	"github.com/containerd/nri/pkg/api"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// The plugin keeps only those labels and annotations of a pod that decisions read: its author can write a quarter of a
// megabyte, and a node has thousands of containers.
func TestContainerOf_KeepsLittle(t *testing.T) {
	const much = 1 << 18
	sandbox := &api.PodSandbox{Labels: map[string]string{}, Annotations: map[string]string{
		policy.AnnotationKey:                  strings.Repeat("x", much),
		policy.AnnotationKey + "/container.b": strings.Repeat("y", much),
		"other":                               strings.Repeat("z", much),
		"example.com/other":                   strings.Repeat("z", much),
		"devices.gke.io/container.b":          strings.Repeat("z", much),
	}}
	for i := range 13_000 {
		sandbox.Labels[fmt.Sprint("label-", i)] = strings.Repeat("v", 63)
	}
	ctr := &api.Container{Name: "a"}
	c := ContainerOf(sandbox, ctr)
	kept := 0
	for key, value := range c.Annotations {
		kept += len(key) + len(value)
	}
	if len(c.Annotations) != 1 || kept > 2048 {
		t.Errorf("%d annotations of %d bytes are kept, want one of 2 KiB at most", len(c.Annotations), kept)
	}
	short := ContainerOf(&api.PodSandbox{Annotations: map[string]string{policy.AnnotationKey + "/pod": "false",
		policy.AnnotationKey + "/container.a": "true", "b": "c"}}, &api.Container{Name: "a"})
	env := &api.Container{Name: "a", Env: []string{"PATH=/bin", "NVIDIA_MOFED=enabled"}}
	if !ContainerOf(sandbox, env).MOFED || short.MOFED {
		t.Error("NVIDIA_MOFED=enabled is not the one fact that is kept of an environment")
	}
	expect.Equal(t, "annotations", map[string]string{policy.AnnotationKey + "/container.a": "true"}, short.Annotations)
}

// Nothing of the runtime's request stays, such as the environment of a container.
func TestContainerOf_KeepsNoRequest(t *testing.T) {
	p := unregistered(Options{Resources: &fakeKubelet{}, Limits: limits.On(limitstest.NewKernel(nil))})
	request := func() (weak.Pointer[api.PodSandbox], weak.Pointer[api.Container]) {
		pod, ctr := &api.PodSandbox{Id: "s", Namespace: "ml"}, &api.Container{Id: "c", PodSandboxId: "s", Name: "main",
			Env: []string{"NVIDIA_MOFED=enabled", strings.Repeat("x", 1<<20)}}
		if _, _, err := p.CreateContainer(t.Context(), pod, ctr); err != nil {
			t.Fatal(err)
		}
		return weak.Make(pod), weak.Make(ctr)
	}
	pod, ctr := request()
	goruntime.GC()
	if pod.Value() != nil || ctr.Value() != nil {
		t.Errorf("after the answer the plugin keeps the pod: %t, the container: %t", pod.Value() != nil, ctr.Value() != nil)
	}
	goruntime.KeepAlive(p)
}

func TestHostNetwork(t *testing.T) {
	for name, test := range map[string]struct {
		namespaces []string
		want       bool
	}{
		"its own":       {[]string{"pid", "ipc", "uts", "mount", "network"}, false},
		"the host's":    {[]string{"pid", "ipc", "uts", "mount"}, true},
		"none reported": {nil, false},
	} {
		sandbox := &api.PodSandbox{Linux: &api.LinuxPodSandbox{}}
		for _, kind := range test.namespaces {
			sandbox.Linux.Namespaces = append(sandbox.Linux.Namespaces, &api.LinuxNamespace{Type: kind})
		}
		if got := ContainerOf(sandbox, &api.Container{}).HostNetwork; got != test.want {
			t.Errorf("%s: in the host's network namespace: %t, want %t", name, got, test.want)
		}
	}
}

func TestContainerOf_privileged(t *testing.T) {
	all := &api.LinuxDeviceCgroup{Allow: true, Type: "a", Major: api.Int64(-1), Access: "rwm"}
	one := &api.LinuxDeviceCgroup{Allow: true, Type: "c", Major: api.Int64(231), Minor: api.Int64(192), Access: "rwm"}
	for want, rules := range map[bool][]*api.LinuxDeviceCgroup{true: {one, all},
		false: {one, {Type: "a", Access: "rwm"}, one}} {
		ctr := &api.Container{Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Devices: rules}}}
		if got := ContainerOf(pod, ctr).AllDevices; got != want {
			t.Errorf("%v: %t, want %t", rules, got, want)
		}
	}
}
