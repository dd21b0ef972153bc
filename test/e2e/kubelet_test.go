// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Resources with names from real clusters: of the RDMA shared device plugin; of the SR-IOV network device plugin; one
// without devices, so that only the kubelet knows to which containers it is allocated; and one whose device plugin
// returns a CDI device.
const (
	shared     = "rdma/rdma_v100"
	sriov      = "nvidia.com/hostdev"
	deviceless = "spidernet.io/shared_cx5_gpu1"
	byCDI      = "example.com/rdma"
)

// sayMemlock is the command of a container that prints its soft RLIMIT_MEMLOCK in the kernel's format, and ends.
const sayMemlock = `grep 'Max locked memory' /proc/self/limits | awk '{print $4}'`

// TestKubelet runs static pods on a real kubelet, with a device plugin. It needs the node's Kubernetes parts.
func TestKubelet(t *testing.T) {
	k := startKubelet(t, deviceplugin.Shared(shared, 0), deviceplugin.SRIOV(sriov, 1), deviceplugin.Deviceless(deviceless),
		deviceplugin.CDI(byCDI, cdiDevice))
	for _, test := range []struct {
		name string
		run  func(*testing.T, *kubelet.Kubelet)
	}{
		{"by device", testByDevice},
		{"by resource", testByResource},
		{"init containers", testInitContainers},
		{"CDI device", testCDIDevice},
		{"one question a pod", testQuestions},
		{"no answer", testNoAnswer},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, k) })
	}
}

// A device that a device plugin injects is a sufficient signal, without a configuration, an annotation, or a request to
// the kubelet. The device plugins also inject umad and issm, which the container keeps. If no device is injected, and
// no rule names the resource, nothing changes.
func testByDevice(t *testing.T, k *kubelet.Kubelet) {
	relay := startRelay(t, k)
	plugin := startPluginWith(t, "--pod-resources-socket", relay.Socket)
	pod := runStaticPod(t, k, kubelet.Pod{
		Name: "by-device",
		Init: []kubelet.Container{
			{Name: "fetch", Script: sayMemlock, Resource: shared},
			{Name: "prepare", Script: sayMemlock},
		},
		Containers: []kubelet.Container{
			{Name: "server", Resource: shared},
			{Name: "client", Resource: shared},
			{Name: "virtual", Resource: sriov},
			{Name: "worker", Resource: deviceless},
			{Name: "web"},
		},
	})
	pod.expectHolds(t, "server", "unlimited", given(0)...)
	pod.expectHolds(t, "client", "unlimited", given(0)...)
	pod.expectHolds(t, "virtual", "unlimited", given(1)...)
	pod.expectHolds(t, "worker", kernelDefault)
	pod.expectHolds(t, "web", kernelDefault)
	pod.expectSaid(t, "fetch", "unlimited")
	pod.expectSaid(t, "prepare", kernelDefault)
	for container, evidence := range map[string]string{
		"fetch": "/dev/infiniband/uverbs0 (rxe0)", "server": "/dev/infiniband/uverbs0 (rxe0)",
		"client": "/dev/infiniband/uverbs0 (rxe0)", "virtual": "/dev/infiniband/uverbs1 (rxe1)",
	} {
		pod.expectAdjusted(t, plugin, container, "signal=device", "rule=default", "memlock=unlimited", evidence)
	}
	pod.expectUntouched(t, plugin, "prepare", "worker", "web")
	expectTransfer(t, pod.running(t, "server"), pod.running(t, "client"))
	if asked := relay.Asked(); len(asked) > 0 {
		t.Errorf("the kubelet was asked %q, want nothing: no rule names a resource", asked)
	}
}

// If no device is injected, and the configuration names the resource, the kubelet's answer counts. The kubelet lists
// restartable init containers, but no ordinary ones: the resources of an ordinary one are unknown, and it is left
// unchanged.
func testByResource(t *testing.T, k *kubelet.Kubelet) {
	// If an answer comes too late, as on an emulated CPU, the container is left unchanged.
	plugin := startPlugin(t, "optIn: {resources: [spidernet.io/*]}\n")
	pod := runStaticPod(t, k, kubelet.Pod{
		Name: "by-resource",
		Init: []kubelet.Container{
			{Name: "fetch", Script: sayMemlock, Resource: deviceless},
			{Name: "sidecar", Resource: deviceless, Sidecar: true},
			{Name: "proxy", Sidecar: true},
		},
		Containers: []kubelet.Container{
			{Name: "worker", Resource: deviceless},
			{Name: "web"},
		},
	})
	for _, holder := range []string{"sidecar", "worker"} {
		pod.expectHolds(t, holder, "unlimited")
		pod.expectAdjusted(t, plugin, holder, "signal=resource", "evidence="+deviceless, "rule=default", "memlock=unlimited")
	}
	pod.expectSaid(t, "fetch", kernelDefault)
	pod.expectHolds(t, "proxy", kernelDefault)
	pod.expectHolds(t, "web", kernelDefault)
	pod.expectUntouched(t, plugin, "fetch", "proxy", "web")

	unrelated := runStaticPod(t, k, kubelet.Pod{Name: "unrelated", Containers: []kubelet.Container{{Name: "main"}}})
	unrelated.expectHolds(t, "main", kernelDefault)
	unrelated.expectUntouched(t, plugin, "main")
}

// The policy decides about a container with a CDI device. Without a plugin, the device's hook would raise the
// container's limit.
func testCDIDevice(t *testing.T, k *kubelet.Kubelet) {
	writeCDI(t, "--kubernetes")
	startPlugin(t, "memlock: 16Gi")
	pod := runStaticPod(t, k, kubelet.Pod{
		Name: "cdi", Annotations: map[string]string{"rdma.noderesource.dev/container.out": "false"},
		Containers: []kubelet.Container{{Name: "policy", Resource: byCDI}, {Name: "out", Resource: byCDI}},
	})
	pod.expectHolds(t, "policy", strconv.Itoa(16<<30), "rdma_cm", "uverbs0")
	pod.expectHolds(t, "out", kernelDefault, "rdma_cm", "uverbs0")
}

// The plugin sends the kubelet one request per pod, however many of the pod's containers have a resource. It sends no
// other requests.
func testQuestions(t *testing.T, k *kubelet.Kubelet) {
	relay := startRelay(t, k)
	plugin := startPlugin(t, `
rules:
- name: gpu-net
  match: {resources: [spidernet.io/*]}
  memlock: 1Gi
`, "--pod-resources-socket", relay.Socket)
	pod := runStaticPod(t, k, kubelet.Pod{Name: "questions", Containers: []kubelet.Container{
		{Name: "web"},
		{Name: "worker", Resource: deviceless},
	}})
	pod.expectHolds(t, "worker", strconv.Itoa(1<<30))
	pod.expectAdjusted(t, plugin, "worker", "signal=resource", "evidence="+deviceless, "rule=gpu-net", "memlock=1Gi")
	pod.expectHolds(t, "web", kernelDefault)
	pod.expectUntouched(t, plugin, "web")
	if diff := cmp.Diff([]string{"Get"}, relay.Asked()); diff != "" {
		t.Errorf("questions to the kubelet (-want +got):\n%s", diff)
	}
}

// If the kubelet does not answer, a container that a rule for resources might match is left unchanged. The plugin
// counts it, and status and the doctor find it as soon as the kubelet answers.
func testNoAnswer(t *testing.T, k *kubelet.Kubelet) {
	silent := filepath.Join(scratch.Dir(t), "s")
	scratch.Socket(t, silent)
	plugin := startPlugin(t, "optIn: {resources: [spidernet.io/*]}\n", "--pod-resources-socket", silent, "--http", metricsAddress)
	pod := runStaticPod(t, k, kubelet.Pod{Name: "no-answer", Containers: []kubelet.Container{{Name: "worker", Resource: deviceless}}})
	pod.expectHolds(t, "worker", kernelDefault)
	pod.expectUntouched(t, plugin, "worker")
	expectMetric(t, "nri_rdma_left_alone_total 1")

	name := kubelet.Namespace + "/" + pod.name
	found, status := statusOf(t, name)
	if len(found) != 1 || found[0].Signal != "resource" || found[0].State != "below" || status != 1 {
		t.Errorf("status: exit status %d, and %+v: want 1, and a container by its resource that is below policy", status, found)
	}
	wrong, _ := doctor(t, "--only", "container-memlock")
	if wrong = withStatus(wrong, "wrong"); len(wrong) != 1 || wrong[0].Object != "container "+name+" worker" {
		t.Errorf("the doctor found %+v, want the container", wrong)
	}
}

// startRelay starts a relay for the kubelet's pod resources API, which records the requests. It ends with the test.
func startRelay(t *testing.T, k *kubelet.Kubelet) *kubelet.Relay {
	t.Helper()
	r, err := k.Relay(filepath.Join(scratch.Dir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// The kubelet does not list ordinary init containers. Such a container gets the least that any rule that might match it
// grants. It starts even if it has no memory limit and one of these rules requires one.
func testInitContainers(t *testing.T, k *kubelet.Kubelet) {
	plugin := startPlugin(t, `
rules:
- {name: capped, match: {resources: [rdma/*]}, memlock: 1Gi}
- {name: limited, match: {resources: [nvidia.com/*]}, memlock: memory-limit}
`, "--pod-resources-socket", startRelay(t, k).Socket)
	pod := runStaticPod(t, k, kubelet.Pod{
		Name:       "init",
		Init:       []kubelet.Container{{Name: "fetch", Script: sayMemlock, Resource: shared}},
		Containers: []kubelet.Container{{Name: "worker", Resource: shared}},
	})
	pod.expectHolds(t, "worker", strconv.Itoa(1<<30), given(0)...)
	pod.expectAdjusted(t, plugin, "worker", "signal=device", "rule=capped", "memlock=1Gi")
	pod.expectSaid(t, "fetch", kernelDefault) // the least grant: the rule limited grants nothing without a memory limit
	less := slices.ContainsFunc(pod.linesOn(plugin, "fetch"),
		func(line string) bool { return strings.Contains(line, "reduced grant") })
	if !less {
		t.Errorf("the log does not say that the init container gets less:\n%s", plugin.Log())
	}
}

// TestKubeletRestarts: while the kubelet is down, the plugin refuses an RDMA container that a rule for resources might
// match, but no unrelated one. After three failures, it stops calling the kubelet, and logs that. When the kubelet is
// back, the plugin soon calls it again, and the next container that has a resource gets its grant, without a restart of
// the plugin. The test needs the node's Kubernetes parts.
func TestKubeletRestarts(t *testing.T) {
	const breaker = `nri_rdma_api_failing{api="kubelet",path="creation"} ` // 1 after three failures, until the kubelet answers
	first := startKubelet(t, deviceplugin.Deviceless(deviceless))
	plugin := startPlugin(t, "rules: [{match: {resources: [spidernet.io/*]}, ipcLock: false}]\n",
		"--http", metricsAddress)
	before := runStaticPod(t, first, kubelet.Pod{Name: "before-restart",
		Containers: []kubelet.Container{{Name: "worker", Resource: deviceless}}})
	before.expectHolds(t, "worker", "unlimited")
	expectMetric(t, breaker+"0")

	first.Stop()
	pod := runPod(t, containerd.Pod{})
	for i := range 4 {
		expectRefused(t, pod, containerd.Container{Name: fmt.Sprintf("down-%d", i), Devices: containerd.Verbs(0)},
			"the kubelet did not report")
	}
	unrelated := runContainer(t, pod, containerd.Container{Name: "unrelated"})
	expectMemlock(t, unrelated, kernelDefault)
	awaitLog(t, plugin, "the kubelet's pod resources API failed 3 times in a row, so calls to it are paused")
	expectMetric(t, breaker+"1")

	second := startKubelet(t, deviceplugin.Deviceless(deviceless))
	tries := 0
	await.That(t, patience, "asked again", func() bool {
		tries++
		// Each attempt uses a new pod, because a kubelet removes sandboxes that it does not know.
		_, err := runPod(t, containerd.Pod{}).Create(within(t, patience), containerd.Container{
			Name: fmt.Sprintf("back-%d", tries), Devices: containerd.Verbs(0),
		})
		return err != nil && strings.Contains(err.Error(), "the kubelet does not know pod")
	})
	after := runStaticPod(t, second, kubelet.Pod{Name: "after-restart",
		Containers: []kubelet.Container{{Name: "worker", Resource: deviceless}}})
	after.expectHolds(t, "worker", "unlimited")
	after.expectAdjusted(t, plugin, "worker", "signal=resource", "evidence="+deviceless, "memlock=unlimited")
	expectMetric(t, breaker+"0")
	log := plugin.Log()
	if registered, again := strings.Count(log, "msg=registered"),
		strings.Count(log, "the kubelet's pod resources API responds again"); registered != 1 || again != 1 {
		t.Errorf("the plugin has registered %d times and said %d times that the kubelet answers again, want once each",
			registered, again)
	}
	for _, line := range after.linesOn(plugin, "worker") {
		if strings.Contains(line, "left alone") {
			t.Errorf("the kubelet was there and was not asked: %s", line)
		}
	}
}
