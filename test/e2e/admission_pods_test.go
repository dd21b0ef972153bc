// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type (
	annotated map[string]string
	// ctr is a container with its requests.
	ctr struct {
		name             string // "" means main
		init             bool
		requests, limits string // a resource of which it requests one; the API server derives a request from a limit
	}
)

// holder is the container of a pod that requests an HCA.
var holder = []ctr{{limits: "rdma/a"}}

// insisted is what the policy adds to the annotations of a pod that requires no other plugin.
var insisted = annotated{requires: onlyRDMA}

// admissions are pods, and the annotations that the policy adds to them. Of the list of resources, they cover one entry
// with a star and one without.
var admissions = []struct {
	name        string
	annotations annotated
	containers  []ctr
	adds        annotated
}{
	{name: "plain pod"},
	{name: "plain pod with annotations", annotations: annotated{"example.com/rdma": "true",
		"rdma.noderesource.devs": "true"}},
	{name: "CPU and memory only", containers: []ctr{{limits: "cpu"}, {name: "b", requests: "memory"}}},

	{name: "annotated", annotations: annotated{asks: "true"}, adds: insisted},
	{name: "annotated with YAML", annotations: annotated{asks: "{memlock: 16Gi}"}, adds: insisted},
	{name: "annotated with what cannot be read", annotations: annotated{asks: "ture"}, adds: insisted},
	{name: "annotated pod", annotations: annotated{asks + "/pod": "true"}, adds: insisted},
	{name: "annotated container", annotations: annotated{asks + "/container.main": "true"},
		adds: insisted},
	{
		name: "annotated init container", annotations: annotated{asks + "/container.prepare": "true"},
		containers: []ctr{{}, {name: "prepare", init: true}}, adds: insisted,
	},
	{name: "annotated container that the pod does not have", annotations: annotated{asks + "/container.other": "true"}},
	{name: "opted out", annotations: annotated{asks: "false"}},
	{name: "opted out, with spaces", annotations: annotated{asks: " false\n"}},
	{name: "pod opted out of what the bare key says", annotations: annotated{asks: "true", asks + "/pod": "false"}},
	{name: "only container opted out", annotations: annotated{asks: "true", asks + "/container.main": "false"}},
	{
		name: "one container opted out", annotations: annotated{asks: "true", asks + "/container.main": "false"},
		containers: []ctr{{}, {name: "other"}}, adds: insisted,
	},

	{name: "resource", containers: []ctr{{limits: "rdma/rdma_v100"}}, adds: insisted},
	{name: "resource without a star", containers: []ctr{{limits: "nvidia.com/hostdev"}},
		adds: insisted},
	{name: "resource in requests and limits", containers: []ctr{{requests: "rdma/a", limits: "rdma/a"}},
		adds: insisted},
	{name: "resource of the second container", containers: []ctr{{}, {name: "b", limits: "rdma/a"}},
		adds: insisted},
	{name: "resource of an init container", containers: []ctr{{}, {name: "b", init: true, limits: "rdma/a"}},
		adds: insisted},
	{name: "resource and an annotation of others", annotations: annotated{"a": "b"}, containers: holder, adds: insisted},
	{name: "resource with a similar domain", containers: []ctr{{limits: "rdmax/foo"}}},
	{name: "resource with a longer domain", containers: []ctr{{limits: "x.rdma/foo"}}},
	{name: "resource with a longer name", containers: []ctr{{limits: "nvidia.com/hostdev2"}}},
	{name: "resource where the glob has a dot", containers: []ctr{{limits: "nvidiaxcom/hostdev"}}},
	{name: "resource of another domain", containers: []ctr{{limits: "nvidia.com/gpu"}}},
	{name: "resource, but opted out", annotations: annotated{asks: "false"}, containers: holder},
	{
		name: "resource, but its container opted out", annotations: annotated{asks + "/container.main": "false"},
		containers: []ctr{{limits: "rdma/a"}, {name: "b"}},
	},

	{
		name: "requires another", annotations: annotated{requires: `["other"]`},
		containers: holder, adds: annotated{requires: `["rdma", "other"]`},
	},
	{
		name: "requires one of a similar name", annotations: annotated{requires: `[ rdma-2, my.rdma ]`},
		containers: holder, adds: annotated{requires: `["rdma", rdma-2, my.rdma ]`},
	},
	{
		name: "requires others, one a line", annotations: annotated{requires: "  - other\n  - third\n"},
		containers: holder, adds: annotated{requires: "  - rdma\n  - other\n  - third\n"},
	},
	{name: "requires nothing", annotations: annotated{requires: " [ ] "}, containers: holder, adds: insisted},
	{name: "requires, emptily", annotations: annotated{requires: ""}, containers: holder, adds: insisted},
	{name: "requires it already", annotations: annotated{requires: `["rdma"]`}, containers: holder},
	{name: "requires it among others", annotations: annotated{requires: `[other,rdma, 'third']`},
		containers: holder},
	{name: "requires it among others, one a line", annotations: annotated{requires: "- other\n- 'rdma'\n- third"},
		containers: holder},
	{name: "requires what is not a list", annotations: annotated{requires: "other"},
		containers: holder},
	{
		name: "requires another for the pod", annotations: annotated{requires: `["x"]`, requires + "/pod": `["other"]`},
		containers: holder, adds: annotated{requires + "/pod": `["rdma", "other"]`},
	},
	{
		name:        "requires others for its containers",
		annotations: annotated{requires + "/container.main": `["other"]`, requires + "/container.web": `[]`},
		containers:  []ctr{{limits: "rdma/a"}, {name: "web"}},
		adds:        annotated{requires: onlyRDMA, requires + "/container.main": `["rdma", "other"]`},
	},
	{name: "plain pod that requires another", annotations: annotated{requires: `["other"]`}},

	{name: "copy of a static pod", annotations: annotated{mirror: "x"}, containers: holder},
}

// podOf returns a pod with these containers, or with one that requests nothing.
func podOf(annotations annotated, containers ...ctr) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "test", Namespace: metav1.NamespaceDefault, Annotations: annotations},
	}
	if annotations[mirror] != "" {
		pod.Spec.NodeName = "node" // the API server needs to know which node's static pod this is the mirror of
	}
	if len(containers) == 0 {
		containers = []ctr{{}}
	}
	list := func(name string) corev1.ResourceList {
		if name == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
	}
	for _, c := range containers {
		into := &pod.Spec.Containers
		if c.init {
			into = &pod.Spec.InitContainers
		}
		name := c.name
		if name == "" {
			name = "main"
		}
		*into = append(*into, corev1.Container{
			Name: name, Image: "example.com/none:1",
			Resources: corev1.ResourceRequirements{Requests: list(c.requests), Limits: list(c.limits)},
		})
	}
	return pod
}
