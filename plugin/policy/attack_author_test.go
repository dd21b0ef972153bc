// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// named is a container of a pod whose author names devices through other plugins' annotations, with what it holds then.
func named(annotations map[string]string, devices ...Device) subject {
	c := guest("", devices...)
	c.Annotations = annotations
	return c
}

// byAnnotationOf is named with one annotation.
func byAnnotationOf(key, value string, devices ...Device) subject {
	return named(map[string]string{key: value}, devices...)
}

const uverbs1 = "- path: /dev/infiniband/uverbs1\n"

// injectors are the ways in which the author of a pod has other plugins give the container c the verbs device mlx5_1.
var injectors = []struct{ name, key, value string }{
	{"gke", "devices.gke.io/container.c", uverbs1},
	{"gke-pod", "devices.gke.io/pod", uverbs1},
	{"gke-bare", "devices.gke.io", uverbs1},
	{"nvidia", "nvidia.cdi.k8s.io/container.c", "nvidia.com/mofed=all"},
	{"nvidia-star", "nvidia.cdi.k8s.io/container.*", "nvidia.com/gpu=0,rdma.example.com/hca=mlx5_1"},
	{"nvidia-pod", "nvidia.cdi.k8s.io/pod", "rdma.example.com/hca=mlx5_1"},
	{"sample", "devices.noderesource.dev/container.c",
		"[{path: /dev/infiniband/uverbs1, type: c, major: 231, minor: 193}]"},
	{"sample-cdi", "cdi-devices.noderesource.dev/pod", "[rdma.example.com/hca=mlx5_1]"},
	{"sample-old", "devices.nri.io/container.c", uverbs1 + "  type: c\n  major: 231\n  minor: 193\n"},
	{"sample-cdi-old", "cdi-devices.nri.io", "- nvidia.com/gpu=0\n- rdma.example.com/hca=mlx5_1\n"},
}

// authorAttacks are made to give oneself a verbs device through another plugin, for the sake of memlock.
func authorAttacks() []attack {
	none := func(guard, name string, c subject) attack {
		return attack{guard: guard, name: name, config: "{}", container: c}
	}
	gke := func(value string, devices ...Device) subject {
		return byAnnotationOf("devices.gke.io/container.c", value, devices...)
	}
	asking := func(kubelet func() ([]string, bool, error), c subject) subject { c.Resources = kubelet; return c }
	hidden := deviceAt("/dev/elsewhere", "c", 231, 193)
	rows := []attack{
		none("author-resource", "named-beside-a-gpu-of-the-kubelets", asking(kubeletHolds("nvidia.com/gpu"),
			gke(uverbs1, heldVerbs(1)))),
		none("author-resource", "named-in-an-init-container", asking(unlisted(), gke(uverbs1, heldVerbs(1)))),
		none("author-resource", "named-under-a-silent-kubelet", asking(silent, gke(uverbs1, heldVerbs(1)))),
		none("author-resource", "named-without-a-kubelet", asking(nil, gke(uverbs1, heldVerbs(1)))),
		none("author-resource", "named-beside-a-container-that-holds-an-hca", asking(kubeletHolds(),
			gke(uverbs1, heldVerbs(1))).with(func(c *subject) { c.PodHolds = podHolds(allotted("rdma/ib")) })),
		none("author-namespace", "named-in-a-namespace-that-a-rule-names", gke(uverbs1, heldVerbs(1)).with(func(c *subject) {
			c.Namespace = "fabric"
		})),
		none("author-held-path", "named-with-dots", gke("- path: /dev/../dev/./infiniband//uverbs1", heldVerbs(1))),
		none("author-held-path", "named-in-capitals", gke("- PATH: /dev/infiniband/uverbs1", heldVerbs(1))),
		none("author-held-path", "named-in-an-escape", gke(`- "path": "\x2fdev/infiniband/uverbs1"`, heldVerbs(1))),
		none("author-held-path", "named-in-the-second-place", gke("- path: /dev/nvidia0\n"+uverbs1, gpu(0), heldVerbs(1))),
		none("author-held-path", "named-twice-with-two-devices", gke(uverbs1+"- path: /dev/infiniband/uverbs0", heldVerbs(0),
			heldVerbs(1))),
		none("author-held-path", "named-under-a-second-key", named(map[string]string{"devices.gke.io/container.c": "",
			"devices.noderesource.dev/pod": uverbs1}, heldVerbs(1))),
		none("author", "named-at-a-path-of-ones-own", byAnnotationOf("devices.noderesource.dev",
			"[{path: /dev/elsewhere, type: c, major: 231, minor: 193}]", hidden)),
		none("author-number", "named-by-a-number-alone", byAnnotationOf("devices.noderesource.dev",
			"[{type: c, major: 231, minor: 193}]", heldVerbs(1))),
		none("author-number", "named-by-a-number-in-quotes", byAnnotationOf("devices.noderesource.dev",
			"[{type: c, major: '0xe7', minor: '193'}]", heldVerbs(1))),
		none("author-path", "named-by-a-link", gke("- path: /dev/char/231:193", heldVerbs(1))),
		none("author-path", "named-under-another-path", gke(uverbs1, hidden)),
		none("author-size", "named-after-a-long-comment", gke("# "+strings.Repeat("x", 1<<18)+"\n"+uverbs1,
			heldVerbs(1)).with(func(c *subject) { c.Annotations = Annotations(c.Annotations, "c") })),
		none("author", "named-by-an-alias", gke("- {path: &a /dev/infiniband/uverbs0, path: *a}", heldVerbs(1))),
		none("author", "named-in-base64", gke("- path: !!binary L2Rldi9pbmZpbmliYW5kL3V2ZXJiczE=", heldVerbs(1))),
		none("author-form", "named-in-a-list", gke("- path: [/dev/infiniband/uverbs1]", heldVerbs(1))),
		none("author-form", "named-by-its-hca", gke("- hca: mlx5_1", heldVerbs(1))),
		none("author-kind", "kind-that-ends-like-a-gpus", byAnnotationOf("nvidia.cdi.k8s.io/container.c",
			"xnvidia.com/gpu=0", heldVerbs(1))),
		none("author-kind", "kind-that-begins-like-a-gpus", byAnnotationOf("nvidia.cdi.k8s.io/container.c",
			"nvidia.com/gpu2=0", heldVerbs(1))),
		none("author-kind", "kind-in-a-comment", byAnnotationOf("nvidia.cdi.k8s.io/container.c",
			"nvidia.com/gpu=0 #,rdma.example.com/hca=0", heldVerbs(1))),
		none("author-kind", "no-yaml", gke("- path: {", heldVerbs(1))),
		none("author-kind", "yaml-of-another-form", gke("devices: [/dev/infiniband/uverbs1]", heldVerbs(1))),
		none("author-kind", "number-for-a-device", gke("[193]", heldVerbs(1))),
		{guard: "author", name: "named-to-an-injector-of-the-administrators", container: byAnnotationOf("inject.example.com/pod",
			"mlx5_1", heldVerbs(1)), config: "optIn: {deviceAnnotations: [inject.example.com]}"},
		{guard: "author-resource", name: "named-under-a-rule-for-other-resources",
			config:    "rules: [{match: {namespaces: [web], resources: [example.com/net]}}]",
			container: asking(kubeletHolds("example.com/gpu"), gke(uverbs1, heldVerbs(1)))},
		{guard: "opt-in", name: "named-and-annotated", config: "{}", refused: CauseNamespace, says: "to opt in by annotation",
			container: gke(uverbs1, heldVerbs(1)).with(func(c *subject) { c.Annotations[AnnotationKey] = "true" })},
		{guard: "device-annotation", name: "key-with-a-scope", config: "optIn: {deviceAnnotations: [devices.gke.io/pod]}",
			badConfig: true, says: "is not a valid annotation key"},
		{guard: "device-annotation", name: "key-of-the-runtimes", config: "optIn: {deviceAnnotations: [io.kubernetes.cri.x]}",
			badConfig: true, says: "is not a valid annotation key"},
	}
	for _, by := range injectors {
		rows = append(rows, none("author", "named-to-"+by.name, byAnnotationOf(by.key, by.value, heldVerbs(1))))
	}
	return rows
}

// A verbs device that the pod's author names through another plugin counts in namespaces where his annotation would, and
// where the kubelet says that the container was given an HCA.
func TestAuthorsDevice(t *testing.T) {
	const listed = "{optIn: {namespaces: [opt-a]}, inject: {namespaces: [ml-a]}}"
	node := node(t, "V100")
	for _, by := range injectors {
		for _, namespace := range []string{"web", "opt-a", "ml-a"} {
			for _, resource := range []string{"", "nvidia.com/gpu", "rdma/ib"} {
				t.Run(by.name+"/"+namespace+"/"+resource, func(t *testing.T) {
					asked := 0
					c := byAnnotationOf(by.key, by.value, heldVerbs(1))
					c.Namespace = namespace
					c.Resources = func() ([]string, bool, error) {
						asked++
						return []string{resource}, true, nil
					}
					want := Decision{Signal: SignalDevice, Evidence: "/dev/infiniband/uverbs1 (mlx5_1)", Rule: "default",
						Grant: unlimited()}
					if namespace == "web" && resource != "rdma/ib" {
						want = Decision{Signal: SignalNone, Authored: by.key}
					}
					got := policyOf(t, listed).decide(c, node)
					if got.Grant == nil && !strings.Contains(got.Reason, by.key) {
						t.Errorf("the reason does not name the annotation: %s", got.Reason)
					}
					got.Reason = ""
					expect.Equal(t, "decision", want, got)
					if wanted := map[bool]int{true: 1}[namespace == "web"]; asked != wanted {
						t.Errorf("the kubelet is asked %d times, want %d", asked, wanted)
					}
				})
			}
		}
	}
}

// A kubelet that does not answer may know of an HCA, and one that is not there knows of none. Neither refuses.
func TestAuthorsDeviceWithoutTheKubeletsWord(t *testing.T) {
	for name, test := range map[string]struct {
		kubelet func() ([]string, bool, error)
		says    string
	}{"silent": {silent, "the kubelet did not report"}, "none": {nil, "to optIn.namespaces"}} {
		c := byAnnotationOf("devices.gke.io", uverbs1, heldVerbs(1))
		c.Resources = test.kubelet
		got := policyOf(t, "{}").decide(c, node(t, "V100"))
		if got.Grant != nil || got.Refusal != nil || !got.Unknown || got.Authored != "devices.gke.io" ||
			!strings.Contains(got.Reason, test.says) || name == "none" && !strings.HasSuffix(got.Reason, test.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What an annotation says of other devices, other containers, or nothing takes nothing from a device that somebody else
// gave, and asks the kubelet nothing.
func TestDecide_authorsOtherDevices(t *testing.T) {
	const tcpxo = "- path: /dev/nvidia0\n- path: /dev/nvidia1\n- path: /dev/nvidiactl\n- path: /dev/nvidia-uvm\n" +
		"- path: /dev/dmabuf_import_helper\n"
	for name, test := range map[string]struct {
		key, value string
		devices    []Device
	}{
		"GKE's TCPXO job, whose worker holds an HCA": {"devices.gke.io/container.tcpxo-daemon", tcpxo, nil},
		"the same for this container":                {"devices.gke.io/container.c", tcpxo, []Device{gpu(0), gpu(1)}},
		"its injector does not run":                  {"devices.gke.io/container.c", tcpxo, nil},
		"nvidia-caps of a G4 pod": {"devices.gke.io/container.c", "- path: /dev/nvidia-caps/nvidia-cap1\n",
			[]Device{deviceAt("/dev/nvidia-caps/nvidia-cap1", "c", 511, 1)}},
		"an operand of the GPU Operator": {"nvidia.cdi.k8s.io/container.c", "management.nvidia.com/gpu=all",
			[]Device{gpu(0)}},
		"a GPU by annotation, and an HCA by DRA": {"nvidia.cdi.k8s.io/pod", "nvidia.com/gpu=0, nvidia.com/gpu=1",
			[]Device{gpu(0), gpu(1)}},
		"a GPU that KAI's binder chose": {"nvidia.cdi.k8s.io/container.c", "k8s.device-plugin.nvidia.com/gpu=GPU-0b2f",
			nil},
		"an iGPU in a list":                {"cdi-devices.noderesource.dev/container.c", "- gpu.intel.com/igpu=tc\n", nil},
		"a device of nobody's that it has": {"devices.gke.io/pod", "- path: /dev/accel0", []Device{deviceAt("/dev/accel0", "c", 261, 0)}},
		"another HCA than the one it has":  {"devices.gke.io/pod", "- path: /dev/infiniband/uverbs1", []Device{heldVerbs(1)}},
		"an HCA for another container":     {"devices.gke.io/container.d", uverbs1, nil},
		"a CDI device for another":         {"nvidia.cdi.k8s.io/container.d", "nvidia.com/mofed=all", nil},
		"a key of the container's, by CDI": {"cdi.k8s.io/nvidia-device-plugin_1", "nvidia.com/mofed=all", nil},
		"a key that begins like one":       {"devices.gke.io.example.com/pod", uverbs1, nil},
		"a scope that no plugin reads":     {"devices.gke.io/pods", uverbs1, nil},
		"nothing":                          {"devices.gke.io/container.c", "", nil},
		"nothing, as YAML":                 {"devices.gke.io/container.c", "[] # none", nil},
		"a mount":                          {"mounts.noderesource.dev/pod", "- source: /dev/infiniband", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := byAnnotationOf(test.key, test.value, append(test.devices, heldVerbs(0))...)
			c.Resources = func() ([]string, bool, error) {
				t.Error("the kubelet is asked")
				return nil, false, nil
			}
			got := policyOf(t, "{}").decide(c, node(t, "V100"))
			expect.Equal(t, "decision", byDevice(unlimited()), got)
		})
	}
	off := policyOf(t, "optIn: {deviceAnnotations: []}")
	got := off.decide(byAnnotationOf("devices.gke.io", "- path: /dev/infiniband/uverbs0", heldVerbs(0)), node(t, "V100"))
	expect.Equal(t, "decision where no key is listed", byDevice(unlimited()), got)
}

// Without an annotation of another plugin's, no device is looked up a second time.
func TestAuthorsDevicesCostNothingElsewhere(t *testing.T) {
	facts, calls := node(t, "V100"), 0
	look := facts.Verbs
	facts.Verbs = func(n hca.Number) (hca.Device, bool, error) {
		calls++
		return look(n)
	}
	policyOf(t, "{}").decide(holding(heldVerbs(0), heldVerbs(1), gpu(0)), facts)
	if calls != 1 {
		t.Errorf("%d look-ups of devices, want 1", calls)
	}
}
