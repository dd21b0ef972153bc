// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// unlimited is the grant of the default configuration, without devices.
func unlimited(devices ...hca.Device) *spec.Grant {
	return &spec.Grant{Memlock: spec.Unlimited, IPCLock: spec.IPCLockUnlessDropped, Devices: devices}
}

func byDevice(grant *spec.Grant) Decision {
	return Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs0 (mlx5_0)", Rule: "default", Grant: grant}
}

func byAnnotation(grant *spec.Grant) Decision {
	return Decision{Signal: SignalAnnotation, Evidence: AnnotationKey, Rule: "default", Grant: grant}
}

const listed = "inject: {namespaces: [ml-*]}"

// Who is an RDMA container: the rows of the design, on a node with the HCAs mlx5_0 and mlx5_1, both up.
func TestSignals(t *testing.T) {
	both := []hca.Device{verbs(0, "mlx5_0"), verbs(1, "mlx5_1"), rdmaCM()}
	nothing := Decision{Signal: SignalNone}
	left := func(reason string) Decision { return Decision{Signal: SignalNone, Reason: reason} }
	elsewhere := func(held string) string {
		return "the pod has been allocated " + held + ", so its annotation applies only to RDMA containers, and this container is not one"
	}
	tests := map[string]struct {
		config    string
		container subject
		want      Decision
	}{
		"nothing":                {"", subject{Container: Container{}}, nothing},
		"other-devices":          {"", holding(gpu(0), gpu(1)), nothing},
		"device":                 {"", holding(gpu(0), heldVerbs(0)), byDevice(unlimited())},
		"device-unbuffered":      {"", holding(deviceAt("/dev/x", "u", 231, 192)), byDevice(unlimited())},
		"device-at-another-path": {"", holding(deviceAt("/dev/x", "c", 231, 192)), byDevice(unlimited())},
		"privileged": {"", subject{Container: Container{AllDevices: true, Devices: []Device{heldVerbs(0)}}},
			left("the container is privileged and can access all devices, so its devices do not make it an RDMA container")},
		"privileged-without":    {"", subject{Container: Container{AllDevices: true, Devices: []Device{gpu(0)}}}, nothing},
		"device-does-not-count": {"optIn: {devices: false}", holding(heldVerbs(0)), nothing},
		"handler-skipped": {"", subject{Container: Container{RuntimeHandler: "kata-qemu", Devices: []Device{heldVerbs(0)}}},
			left(`runtime handler "kata-qemu" is in skipRuntimeHandlers`)},
		"handler-skipped-other": {"", subject{Container: Container{RuntimeHandler: "kata-qemu", Devices: []Device{gpu(0)}}}, nothing},
		"no-handler-skipped": {"skipRuntimeHandlers: ['']", annotated("", "true"),
			left(`runtime handler "" is in skipRuntimeHandlers`)},
		"no-handler-skipped-other": {"skipRuntimeHandlers: ['']", subject{Container: Container{RuntimeHandler: "runc",
			Devices: []Device{heldVerbs(0)}}}, byDevice(unlimited())},
		"sandboxed-by-type": {"", subject{Container: Container{RuntimeHandler: "untrusted", Sandboxed: true, Devices: []Device{heldVerbs(0)}}},
			left(`runtime handler "untrusted" runs the container on a separate kernel`)},
		"handler-skipped-annotated": {"", subject{Container: Container{RuntimeHandler: "runsc", Annotations: podAnnotation("true")}},
			left(`runtime handler "runsc" is in skipRuntimeHandlers`)},
		"handler-not-skipped": {"skipRuntimeHandlers: []", subject{Container: Container{RuntimeHandler: "kata",
			Devices: []Device{heldVerbs(0)}}}, byDevice(unlimited())},
		"annotation": {listed, annotated("ml-a", "true"), byAnnotation(unlimited(both...))},
		"annotation-bare": {listed, subject{Container: Container{Namespace: "ml-a",
			Annotations: map[string]string{AnnotationKey: "true"}}}, byAnnotation(unlimited(both...))},
		"annotation-pod-beats-bare": {listed, subject{Container: Container{Namespace: "ml-a",
			Annotations: map[string]string{AnnotationKey: "true", AnnotationKey + "/pod": "false"}}},
			left("opted out by annotation")},
		"annotation-container-beats-pod": {listed, subject{Container: Container{Namespace: "ml-a", Name: "a",
			Annotations: map[string]string{AnnotationKey + "/container.a": "true", AnnotationKey + "/pod": "false"}}},
			byAnnotation(unlimited(both...))},
		"annotation-of-another": {listed, subject{Container: Container{Namespace: "ml-a", Name: "b",
			Annotations: map[string]string{AnnotationKey + "/container.a": "true"}}}, nothing},
		"annotation-beats-device": {listed, annotated("ml-a", "true", heldVerbs(0)), byAnnotation(unlimited())},
		"annotation-with-device":  {"", annotated("guest", "true", heldVerbs(0)), byDevice(unlimited())},
		"opt-out":                 {"", annotated("", "false"), left("opted out by annotation")},
		"opt-out-with-device":     {"", annotated("", "false", heldVerbs(0)), left("opted out by annotation")},
		"opt-out-not-asked-about": {"optIn: {resources: [rdma/*]}", subject{Container: Container{Annotations: podAnnotation("false")}, Resources: silent}, left("opted out by annotation")},
		"environment": {"optIn: {mofedRuntimeHandlers: [nvidia*]}", subject{Container: Container{RuntimeHandler: "nvidia-cdi", MOFED: true}},
			Decision{Signal: SignalEnvironment, Evidence: "NVIDIA_MOFED=enabled", Rule: "default", Grant: unlimited()}},
		"environment-without-a-runtime-class": {"optIn: {mofedRuntimeHandlers: ['']}", subject{Container: Container{MOFED: true}},
			Decision{Signal: SignalEnvironment, Evidence: "NVIDIA_MOFED=enabled", Rule: "default", Grant: unlimited()}},
		"environment-not-set": {"optIn: {mofedRuntimeHandlers: [nvidia*]}", subject{Container: Container{RuntimeHandler: "nvidia"}}, nothing},
		"environment-and-less": {"optIn: {mofedRuntimeHandlers: [nvidia]}", subject{Container: Container{RuntimeHandler: "nvidia", MOFED: true,
			Annotations: podAnnotation("{memlock: 1Gi}")}}, Decision{Signal: SignalEnvironment,
			Evidence: "NVIDIA_MOFED=enabled", Rule: "default", Grant: &spec.Grant{Memlock: 1 << 30}}},
		"environment-opted-out": {"optIn: {mofedRuntimeHandlers: [nvidia]}", subject{Container: Container{RuntimeHandler: "nvidia", MOFED: true,
			Annotations: podAnnotation("false")}}, left("opted out by annotation")},
		"environment-that-asks-no-kubelet": {"optIn: {mofedRuntimeHandlers: [nvidia], resources: [rdma/*]}",
			subject{Container: Container{RuntimeHandler: "nvidia", MOFED: true}, Resources: silent}, Decision{Signal: SignalEnvironment,
				Evidence: "NVIDIA_MOFED=enabled", Rule: "default", Grant: unlimited()}},
		"resource": {"optIn: {resources: [rdma/*]}",
			askedFor("", kubeletHolds("nvidia.com/gpu", "rdma/ib")), Decision{Signal: SignalResource, Evidence: "rdma/ib",
				Rule: "default", Grant: unlimited()}},
		"resource-other":        {"optIn: {resources: [rdma/*]}", askedFor("", kubeletHolds("nvidia.com/gpu")), nothing},
		"resource-nobody-names": {"", askedFor("", kubeletHolds("rdma/ib")), nothing},
		"resource-of-a-rule": {"rules: [{name: hostdev, match: {resources: [nvidia.com/hostdev]}, memlock: 1Gi}]",
			askedFor("", kubeletHolds("nvidia.com/hostdev")),
			Decision{Signal: SignalResource, Evidence: "nvidia.com/hostdev", Rule: "hostdev",
				Grant: &spec.Grant{Memlock: 1 << 30}}},
		"resource-of-another-namespaces-rule": {"rules: [{match: {namespaces: [ml-*], resources: [rdma/*]}}]",
			askedFor("web", kubeletHolds("rdma/ib")), nothing},
		"kubelet-not-asked-in-vain": {"rules: [{match: {namespaces: [ml-*], resources: [rdma/*]}}]",
			askedFor("web", silent), nothing},
		"kubelet-silent": {"optIn: {resources: [rdma/*]}", askedFor("", silent),
			Decision{Signal: SignalNone, Unknown: true,
				Reason: "the kubelet did not report the container's resources (context deadline exceeded)"}},
		"kubelet-absent": {"optIn: {resources: [rdma/*]}", subject{Container: Container{}},
			Decision{Signal: SignalNone, Unknown: true,
				Reason: "the kubelet did not report the container's resources (the node has no kubelet)"}},
		"kubelet-silent-and-less": {"optIn: {resources: [rdma/*]}", subject{Container: Container{Annotations: podAnnotation("{memlock: 1Gi}")}, Resources: silent},
			Decision{Signal: SignalNone, Unknown: true,
				Reason: "the pod's annotation only lowers values, and nothing else makes the container an RDMA container"}},
		"init-container": {"optIn: {resources: [rdma/*]}", askedFor("", unlisted()),
			Decision{Signal: SignalNone, Unknown: true}},
		"claim-beside-a-resource": {"optIn: {resources: [rdma/*]}", askedFor("", unlisted("rdma/ib")),
			Decision{Signal: SignalResource, Evidence: "rdma/ib", Rule: "default", Grant: unlimited()}},
		"init-container-nobody-asks-about": {"", askedFor("", unlisted()), nothing},
		"less": {"",
			annotated("", "{memlock: 1Gi, ipcLock: false, devices: none}"),
			left("the pod's annotation only lowers values, and nothing else makes the container an RDMA container")},
		"less-of-the-memory-limit": {"memlock: 1Mi", annotated("", "{memlock: memory-limit}"),
			left("the pod's annotation only lowers values, and nothing else makes the container an RDMA container")},
		"pod-wide": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: podHolds(allotted("nvidia.com/gpu"), allotted("rdma/ib"))},
			left(elsewhere(`"rdma/ib"`))},
		"pod-wide-more":      {"", subject{Container: Container{Annotations: podAnnotation("{memlock: unlimited, devices: all}")}, PodHolds: podHolds(allotted("rdma/ib"))}, left(elsewhere(`"rdma/ib"`))},
		"pod-wide-by-opt-in": {"optIn: {resources: [example.com/net]}", subject{Container: Container{Annotations: podAnnotation("true")}, Resources: kubeletHolds(), PodHolds: podHolds(allotted("example.com/net"))}, left(elsewhere(`"example.com/net"`))},
		"pod-wide-by-rule":   {"rules: [{match: {resources: [example.com/net]}}]", subject{Container: Container{Annotations: podAnnotation("true")}, Resources: kubeletHolds(), PodHolds: podHolds(allotted("example.com/net"))}, left(elsewhere(`"example.com/net"`))},
		"pod-wide-claim": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: claimed},
			left(elsewhere("a resource claim"))},
		"pod-wide-by-address": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: podHolds(allotted("nvidia.com/gpu", "GPU-1"),
			allotted("openshift.io/mlxnics", "0000:00:00.0", "0000:86:00.0"))}, left(elsewhere(`"openshift.io/mlxnics"`))},
		"pod-wide-by-hca": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: podHolds(allotted("nvidia.com/rail0",
			"mlx5_1"))}, left(elsewhere(`"nvidia.com/rail0"`))},
		"pod-wide-by-verbs-device": {"", subject{Container: Container{Annotations: podAnnotation("true")}, PodHolds: podHolds(allotted("example.com/net",
			"uverbs0"))}, left(elsewhere(`"example.com/net"`))},
		"less-in-a-listed-namespace": {listed, annotated("ml-a", "{memlock: 1Gi, devices: none}"),
			byAnnotation(&spec.Grant{Memlock: 1 << 30})},
		"annotation-without-injection": {"optIn: {namespaces: [ml-*]}", annotated("ml-a", "true"), byAnnotation(unlimited())},
		"kubelet-silent-but-device": {"optIn: {resources: [rdma/*]}", askedFor("", silent, heldVerbs(0)),
			byDevice(unlimited())},
	}
	node := node(t, "V100")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := policyOf(t, test.config).decide(test.container, node)
			expect.Equal(t, "decision", test.want, got)
		})
	}
}

// A node whose sysfs cannot be read has no verbs devices, and says so.
func TestSignalsOfAnUnreadableNode(t *testing.T) {
	got := policyOf(t, "").decide(holding(heldVerbs(0)), unreadable(t))
	want := Decision{Signal: SignalNone,
		Warnings: []string{"cannot determine whether the container has verbs devices: list verbs devices: input/output " +
			"error: run rdma-spec devices on the node"}}
	expect.Equal(t, "decision", want, got)
}

// Nothing that costs a call is called for a container that cannot need it, nor twice for one that does.
func TestDecideAsksSparingly(t *testing.T) {
	tests := map[string]struct {
		config                        string
		container                     subject
		wantVerbs, wantScan, wantKube int
	}{
		"nothing":            {"", subject{Container: Container{}}, 0, 0, 0},
		"block-devices-only": {"", subject{Container: Container{Devices: []Device{{Path: "/dev/sda", Type: "b", Major: 8}}}}, 0, 0, 0},
		"privileged":         {"", subject{Container: Container{AllDevices: true, Devices: []Device{heldVerbs(0)}}}, 0, 0, 0},
		"ten-gpus":           {"", holding(gpu(0), gpu(1), gpu(2), gpu(3), gpu(4), gpu(5), gpu(6), gpu(7), gpu(8), gpu(9)), 10, 0, 0},
		"rdma-device": {"rules: [{match: {namespaces: [x], resources: [rdma/*]}}]",
			holding(heldVerbs(0), heldVerbs(1)), 1, 0, 0},
		"rdma-device-and-gpus": {"", holding(gpu(0), gpu(1), heldVerbs(0), heldVerbs(1)), 1, 0, 0},
		"rdma-device-elsewhere": {"", subject{Container: Container{Devices: []Device{gpu(0), {Path: "/dev/x", Type: "c", Major: 231, Minor: 192},
			{Path: "/dev/y", Type: "c", Major: 231, Minor: 193}}}}, 2, 0, 0},
		"skipped-handler": {"optIn: {resources: [rdma/*]}", subject{Container: Container{RuntimeHandler: "kata",
			Devices: []Device{heldVerbs(0)}}}, 1, 0, 0},
		"injection": {listed, annotated("ml-a", "true", gpu(0)), 1, 1, 0},
		"everything": {"{optIn: {resources: [rdma/*]}, inject: {namespaces: [ml-*]}, rules: [{match: {resources: [a/b]}, " +
			"memlock: 1Gi}, {match: {resources: [c/d]}}]}",
			subject{Container: Container{Namespace: "ml-a", Devices: []Device{gpu(0)}, Annotations: podAnnotation("true")}, Resources: kubeletHolds("x/y")}, 1, 1, 1},
		"resources": {"{optIn: {resources: [rdma/*]}, rules: [{match: {resources: [a/b]}}, {match: {resources: [c/d]}}]}",
			askedFor("", kubeletHolds("x/y", "rdma/ib")), 0, 0, 1},
	}
	live := node(t, "V100")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var calls struct{ Verbs, Scan, Kubelet int }
			node := Facts{
				Verbs: func(n hca.Number) (hca.Device, bool, error) { calls.Verbs++; return live.Verbs(n) },
				HCAs:  func() (*hca.Inventory, bool, error) { calls.Scan++; return live.HCAs() },
			}
			if answer := test.container.Resources; answer != nil {
				test.container.Resources = func() ([]string, bool, error) { calls.Kubelet++; return answer() }
			}
			policyOf(t, test.config).decide(test.container, node)
			want := struct{ Verbs, Scan, Kubelet int }{test.wantVerbs, test.wantScan, test.wantKube}
			expect.Equal(t, "calls", want, calls)
		})
	}
}
