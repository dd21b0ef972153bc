// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
)

// TestKubeletRestarts: the kubelet goes, an RDMA container that a rule by resource might be about is refused, an
// unrelated one is not, and the plugin does not ask the kubelet after three failures, and logs it; the kubelet comes
// back, is asked again soon, and the next container that holds a resource gets its grant, without a restart of the
// plugin. It needs the node's Kubernetes parts.
func TestKubeletRestarts(t *testing.T) {
	first := startKubelet(t, deviceplugin.Deviceless(deviceless))
	plugin := startPlugin(t, "rules: [{match: {resources: [spidernet.io/*]}, ipcLock: false}]\nrepair: {mode: \"off\"}\n",
		"--http", metricsAddress)
	before := runStaticPod(t, first, kubelet.Pod{Name: "before-restart",
		Containers: []kubelet.Container{{Name: "worker", Resource: deviceless}}})
	before.expectHolds(t, "worker", "unlimited")
	expectBreaker(t, 0)

	first.Stop()
	pod := runPod(t, containerd.Pod{})
	for i := range 4 {
		expectRefused(t, pod, containerd.Container{Name: fmt.Sprintf("down-%d", i), Devices: containerd.Verbs(0)},
			"the kubelet did not report")
	}
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	expectMemlock(t, unrelated, kernelDefault)
	awaitLog(t, plugin, "the kubelet's pod resources API failed 3 times in a row: it is not called")
	expectBreaker(t, 1)

	second := startKubelet(t, deviceplugin.Deviceless(deviceless))
	tries := 0
	await.That(t, patience, "asked again", func() bool {
		tries++
		// A pod of its own each time, since a kubelet removes the sandboxes that it does not know.
		_, err := runPod(t, containerd.Pod{}).Create(within(t, patience), containerd.Container{
			Name: fmt.Sprintf("back-%d", tries), Devices: containerd.Verbs(0),
		})
		return err != nil && strings.Contains(err.Error(), "the kubelet does not know pod")
	})
	after := runStaticPod(t, second, kubelet.Pod{Name: "after-restart",
		Containers: []kubelet.Container{{Name: "worker", Resource: deviceless}}})
	after.expectHolds(t, "worker", "unlimited")
	after.expectAdjusted(t, plugin, "worker", "signal=resource", "evidence="+deviceless, "memlock=unlimited")
	expectBreaker(t, 0)
	log := plugin.Log()
	if registered, again := strings.Count(log, "msg=registered"),
		strings.Count(log, "the kubelet's pod resources API answers again"); registered != 1 || again != 1 {
		t.Errorf("the plugin has registered %d times and said %d times that the kubelet answers again, want once each",
			registered, again)
	}
	for _, line := range after.linesOn(plugin, "worker") {
		if strings.Contains(line, "left alone") {
			t.Errorf("the kubelet was there and was not asked: %s", line)
		}
	}
}

// expectBreaker compares the metric of the kubelet's breaker: 1 from three failures until the kubelet answers.
func expectBreaker(t *testing.T, want int) {
	t.Helper()
	text, err := metrics()
	if line := fmt.Sprintf("\nnri_rdma_api_failing{api=\"kubelet\",path=\"creation\"} %d\n", want); err != nil ||
		!strings.Contains(text, line) {
		t.Errorf("%v, metrics without%s%s", err, line, text)
	}
}
