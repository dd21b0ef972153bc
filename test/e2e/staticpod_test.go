// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node/daemon"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// kubeletPatience is how long a test waits for a container of a static pod, because the kubelet creates one container
// at a time.
const kubeletPatience = 10 * time.Minute

// startKubelet runs a kubelet that can allocate these resources. It ends with the test.
func startKubelet(t *testing.T, resources ...deviceplugin.Resource) *kubelet.Kubelet {
	t.Helper()
	k, err := kubelet.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	offerResources(t, k, resources...)
	return k
}

// offerResources runs a device plugin until the test ends, and waits until the kubelet can allocate its resources.
func offerResources(t *testing.T, k *kubelet.Kubelet, resources ...deviceplugin.Resource) {
	t.Helper()
	devices, err := deviceplugin.Start(within(t, kubeletPatience), resources...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(devices.Stop)
	var names []string
	for _, r := range resources {
		names = append(names, r.Name)
	}
	if err := k.AwaitAdvertised(within(t, kubeletPatience), names...); err != nil {
		t.Fatal(err)
	}
}

// staticPod is a pod that the kubelet runs.
type staticPod struct {
	kubelet *kubelet.Kubelet
	name    string // the pod's full name
}

// runStaticPod makes the kubelet run a pod, which is removed when the test ends.
func runStaticPod(t *testing.T, k *kubelet.Kubelet, pod kubelet.Pod) *staticPod {
	t.Helper()
	if err := k.Create(pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Delete(pod.Name); err != nil {
			t.Errorf("cannot delete the pod: %v", err)
		}
	})
	return &staticPod{kubelet: k, name: k.FullName(pod.Name)}
}

// running waits until a container is running, and returns its ID.
func (p *staticPod) running(t *testing.T, container string) string {
	t.Helper()
	return p.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
}

func (p *staticPod) await(t *testing.T, container string, state cri.ContainerState) (id string) {
	t.Helper()
	ctx := within(t, kubeletPatience)
	filter := &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: state},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": p.name, "io.kubernetes.container.name": container},
	}
	err := p.kubelet.Await(ctx, "has container "+container+" of pod "+p.name+" in state "+state.String(), func() bool {
		answer, err := ctrd.CRI().ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
		if err != nil || len(answer.GetContainers()) == 0 {
			return false
		}
		id = answer.GetContainers()[0].GetId()
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// given returns the sorted names of the devices that a device plugin injects for an HCA.
func given(hca int) []string {
	var names []string
	for _, device := range deviceplugin.CharacterDevices(hca) {
		names = append(names, filepath.Base(device))
	}
	slices.Sort(names)
	return names
}

// expectHolds compares the soft RLIMIT_MEMLOCK of a container's first process, in the kernel's format, and the device
// files that it sees in /dev/infiniband.
func (p *staticPod) expectHolds(t *testing.T, container, memlock string, devices ...string) {
	t.Helper()
	t.Logf("container %s of pod %s:", container, p.name)
	id := p.running(t, container)
	expectMemlock(t, id, memlock)
	expectDevices(t, id, devices...)
}

// expectSaid waits until a container has ended, and compares its output.
func (p *staticPod) expectSaid(t *testing.T, container, want string) {
	t.Helper()
	id := p.await(t, container, cri.ContainerState_CONTAINER_EXITED)
	answer, err := ctrd.CRI().ContainerStatus(within(t, patience), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	text := scratch.Read(t, answer.GetStatus().GetLogPath())
	// In CRI's log format, each line begins with a time, a stream, and a tag.
	if fields := strings.SplitN(strings.TrimSpace(text), " ", 4); len(fields) != 4 || fields[3] != want {
		t.Errorf("container %s said %q, want %s", container, text, want)
	}
}

// expectAdjusted checks that the plugin logged exactly one line about a container's adjustment, and that the line
// contains these words.
func (p *staticPod) expectAdjusted(t *testing.T, plugin *daemon.Process, container string, words ...string) {
	t.Helper()
	var lines []string
	for _, line := range p.linesOn(plugin, container) {
		if strings.Contains(line, "msg=adjusted") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 {
		t.Errorf("container %s was adjusted %d times, want once: %q", container, len(lines), lines)
		return
	}
	for _, word := range words {
		if !strings.Contains(lines[0], word) {
			t.Errorf("container %s: the log does not say %q: %s", container, word, lines[0])
		}
	}
}

// expectUntouched checks that the plugin logged nothing about the containers, except that the kubelet answered too
// late, which happens on an emulated CPU.
func (p *staticPod) expectUntouched(t *testing.T, plugin *daemon.Process, containers ...string) {
	t.Helper()
	for _, container := range containers {
		for _, line := range p.linesOn(plugin, container) {
			if !strings.Contains(line, "the kubelet did not report") {
				t.Errorf("container %s should have been left alone: %s", container, line)
			}
		}
	}
}

// linesOn returns the plugin's log lines about a container.
func (p *staticPod) linesOn(plugin *daemon.Process, container string) []string {
	var lines []string
	for line := range strings.Lines(plugin.Log()) {
		if words := strings.Fields(line); slices.Contains(words, "container="+container) && slices.Contains(words,
			"pod=default/"+p.name) {
			lines = append(lines, line)
		}
	}
	return lines
}
