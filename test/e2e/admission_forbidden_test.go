// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// allowed is the label of a namespace that can use RDMA. Each refusal names it.
const allowed = "rdma.noderesource.dev/allowed"

// creations are pods that are created in a namespace that cannot use RDMA, with the text of the refusal; "" means that
// the pod is created.
var creations = []struct {
	name        string
	annotations annotated
	containers  []ctr
	change      func(*corev1.PodSpec)
	says        string
}{
	{name: "plain pod"},
	{name: "CPU and memory only", containers: []ctr{{limits: "cpu"}, {name: "b", requests: "memory"}}},
	{name: "annotations of others", annotations: annotated{"example.com/rdma": "true", asks + "s": "true",
		asks + "s/pod": "true"}},

	{name: "annotated", annotations: annotated{asks: "true"}, says: `annotation rdma.noderesource.dev: "true"`},
	{name: "annotated pod", annotations: annotated{asks + "/pod": "true"},
		says: `annotation rdma.noderesource.dev/pod: "true"`},
	{name: "annotated container", annotations: annotated{asks + "/container.main": "true"},
		says: `/container.main: "true"`},
	{name: "annotated for an ephemeral container", annotations: annotated{asks + "/container.debug": "true"},
		says: "/container.debug"},
	{name: "annotated, over two lines", annotations: annotated{asks: "memlock: 16Gi\nipcLock: false"},
		says: `"memlock: 16Gi\nipcLock: false"`},
	{name: "annotated with what cannot be read", annotations: annotated{asks: "ture"},
		says: `annotation rdma.noderesource.dev: "ture"`},
	{name: "annotated with more than a message holds", annotations: annotated{asks: strings.Repeat("x", 6000)},
		says: "this namespace is not allowed to use RDMA"},
	{name: "opted out", annotations: annotated{asks: "false", asks + "/pod": " false\n",
		asks + "/container.main": "false"}},
	{name: "opted out, but one container", annotations: annotated{asks: "false", asks + "/container.main": "true"},
		says: "/container.main"},

	{name: "an HCA that GKE's injector would give", annotations: annotated{
		"devices.gke.io/container.main": "- path: /dev/infiniband/uverbs0"}, says: "(annotation devices.gke.io/container.main: "},
	{name: "an HCA by a number", annotations: annotated{"devices.noderesource.dev": "- {path: /dev/infiniband/uverbs0, type: c, major: 231, minor: 192}"}, says: "annotation devices.noderesource.dev: "},
	{name: "an HCA that NVIDIA's plugin would give", annotations: annotated{
		"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0,nvidia.com/mofed=all"}, says: "annotation nvidia.cdi.k8s.io/pod: "},
	{name: "an HCA by CDI, as a list", annotations: annotated{
		"cdi-devices.nri.io": "- rdma.noderesource.dev/hca=mlx5_0\n"}, says: "annotation cdi-devices.nri.io: "},
	{name: "a TCPXO job", annotations: annotated{"devices.gke.io/container.tcpxo-daemon": "- path: /dev/nvidia0\n- path: /dev/nvidiactl\n- path: /dev/nvidia-uvm\n- path: /dev/dmabuf_import_helper\n"}},
	{name: "an operand of the GPU Operator", annotations: annotated{
		"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}},
	{name: "a GPU of the device plugin's by CDI", annotations: annotated{
		"nvidia.cdi.k8s.io/pod": "k8s.device-plugin.nvidia.com/gpu=0"}},
	{name: "an HCA in an annotation that nobody reads", annotations: annotated{
		"example.com/pod": "/dev/infiniband/uverbs0"}},

	{name: "resource", containers: holder, says: "(container main requests rdma/a)"},
	{name: "resource without a star", containers: []ctr{{limits: "nvidia.com/hostdev"}},
		says: "container main requests nvidia.com/hostdev"},
	{name: "resource of the second container", containers: []ctr{{}, {name: "b", limits: "rdma/a"}},
		says: "(container b requests rdma/a)"},
	{name: "resource of an init container", containers: []ctr{{}, {name: "b", init: true, limits: "rdma/a"}},
		says: "(container b requests rdma/a)"},
	{
		name:       "resource of a DeviceClass, which needs no limit",
		containers: []ctr{{limits: "cpu", requests: "deviceclass.resource.kubernetes.io/rdma-hca"}},
		says:       "(container main requests deviceclass.resource.kubernetes.io/rdma-hca)",
	},
	{name: "resource of an opted-out pod", annotations: annotated{asks: "false"},
		containers: holder, says: "rdma/a"},
	{name: "resource with a similar domain", containers: []ctr{{limits: "rdmax/foo"}}},
	{name: "resource with a longer name", containers: []ctr{{limits: "nvidia.com/hostdev2"}}},
	{name: "resource where the glob has a dot", containers: []ctr{{limits: "nvidiaxcom/hostdev"}}},
	{name: "resource of another domain", containers: []ctr{{limits: "nvidia.com/gpu"}}},

	{name: "resource of another DeviceClass", containers: []ctr{{requests: "deviceclass.resource.kubernetes.io/gpu"}}},
	{name: "claim, which says itself what it is for", change: claims},
	{name: "runtime class", change: runtimeClass("rdma"), says: "(runtime class rdma)"},
	{name: "another runtime class", change: runtimeClass("other")},
	{
		name: "all of it", annotations: annotated{asks: "true"}, containers: holder, change: claims,
		says: `(annotation rdma.noderesource.dev: "true"; container main requests rdma/a)`,
	},
}

func claims(spec *corev1.PodSpec) {
	name := "hca-0"
	spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "hca", ResourceClaimName: &name}}
}

func runtimeClass(name string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.RuntimeClassName = &name }
}

// earlier are objects that exist before RDMA is forbidden.
const earlier = `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: rdma}, handler: rdma}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: other}, handler: other}
---
{apiVersion: v1, kind: Pod, metadata: {name: plain}, spec: {containers: [{name: main, image: example.com/none:1}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: rdma, annotations: {rdma.noderesource.dev: "true"}}
spec: {containers: [{name: main, image: example.com/none:1, resources: {limits: {rdma/a: 1}}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: rdma}
spec:
  selector: {matchLabels: {app: rdma}}
  template:
    metadata: {labels: {app: rdma}}
    spec: {containers: [{name: main, image: example.com/none:1, resources: {limits: {rdma/a: 1}}}]}
`

// updates are patches of objects that existed before RDMA was forbidden, with the text of the refusal.
var updates = []struct{ name, kind, of, patch, says string }{
	{"a plain pod is labelled", "Pod", "plain", `{metadata: {labels: {a: b}}}`, ""},
	{"a plain pod is annotated", "Pod", "plain", `{metadata: {annotations: {rdma.noderesource.dev: "true"}}}`,
		`rdma.noderesource.dev: "true"`},
	{"a plain pod opts out", "Pod", "plain", `{metadata: {annotations: {rdma.noderesource.dev: "false"}}}`, ""},
	{"a plain pod's status changes", "Pod", "plain/status", `{status: {reason: test}}`, ""},
	{"a plain pod's status annotates it", "Pod", "plain/status",
		`{metadata: {annotations: {rdma.noderesource.dev/pod: "true"}}}`, "dev/pod"},
	{"a plain pod is debugged", "Pod", "plain/ephemeralcontainers", ephemeral, ""},
	{"an RDMA pod is labelled", "Pod", "rdma", `{metadata: {labels: {a: b}}}`, ""},
	{"an RDMA pod's status changes", "Pod", "rdma/status", `{status: {reason: test}}`, ""},
	{"an RDMA pod loses its annotation", "Pod", "rdma", `{metadata: {annotations: {rdma.noderesource.dev: null}}}`, ""},
	{
		"an RDMA pod's annotation changes", "Pod", "rdma",
		`{metadata: {annotations: {rdma.noderesource.dev: "{memlock: 1Gi}"}}}`,
		`(annotation rdma.noderesource.dev: "{memlock: 1Gi}")`,
	},
	{"an RDMA pod is debugged", "Pod", "rdma/ephemeralcontainers", ephemeral,
		`(annotation rdma.noderesource.dev: "true"; container main requests rdma/a)`},
	{"an RDMA deployment is scaled", "Deployment", "rdma", `{spec: {replicas: 0}}`, ""},
	{"an RDMA deployment has another image", "Deployment", "rdma",
		`{spec: {template: {spec: {containers: [{name: main, image: other}]}}}}`, ""},
	{
		"an RDMA deployment's pods are annotated", "Deployment", "rdma",
		`{spec: {template: {metadata: {annotations: {rdma.noderesource.dev: "true"}}}}}`,
		`(annotation rdma.noderesource.dev: "true")`,
	},
}

const ephemeral = `{spec: {ephemeralContainers: [{name: debug, image: "example.com/none:1"}]}}`

// claimed maps requests of claims to the text of the refusal.
var claimed = map[string]string{
	`{name: a, exactly: {deviceClassName: gpu.nvidia.com}}`:   "",
	`{name: a, exactly: {deviceClassName: rdma.example.com}}`: "(device class rdma.example.com)",
	`{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, firstAvailable: [{name: c, deviceClassName: other}, ` +
		`{name: d, deviceClassName: dra.net}]}`: "(device class dra.net)",
}

// claimKinds are manifests into which requests can be inserted.
var claimKinds = map[string]string{
	"ResourceClaim":         `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: test}, spec: {devices: {requests: [%s]}}}`,
	"ResourceClaimTemplate": `{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: test}, spec: {spec: {devices: {requests: [%s]}}}}`,
}

// workloads are manifests into which the requests of their pods can be inserted.
var workloads = map[string]string{
	"Deployment":            `{apiVersion: apps/v1, kind: Deployment, metadata: {name: test}, spec: {selector: {matchLabels: {a: b}}, template: %s}}`,
	"StatefulSet":           `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: test}, spec: {selector: {matchLabels: {a: b}}, template: %s}}`,
	"DaemonSet":             `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: test}, spec: {selector: {matchLabels: {a: b}}, template: %s}}`,
	"ReplicaSet":            `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: test}, spec: {selector: {matchLabels: {a: b}}, template: %s}}`,
	"ReplicationController": `{apiVersion: v1, kind: ReplicationController, metadata: {name: test}, spec: {selector: {a: b}, template: %s}}`,
	"Job":                   `{apiVersion: batch/v1, kind: Job, metadata: {name: test}, spec: {template: %s}}`,
	"CronJob":               `{apiVersion: batch/v1, kind: CronJob, metadata: {name: test}, spec: {schedule: "0 0 * * *", jobTemplate: {spec: {template: %s}}}}`,
}

// testForbidden installs the policy that forbids RDMA, and tests it in a namespace without the label, and then in one
// with it.
func testForbidden(t *testing.T, c *cluster.Cluster) {
	apply(t, c, earlier)
	forbid := admissionFile(t, "validating-admission-policy.yaml")
	apply(t, c, forbid)
	awaitForbidden(t, c, true)
	for _, test := range creations {
		t.Run(test.name, func(t *testing.T) {
			pod := podOf(test.annotations, test.containers...)
			if test.change != nil {
				test.change(&pod.Spec)
			}
			_, err := c.Try(within(t, patience), pod)
			expectForbidden(t, err, test.says)
		})
	}
	t.Run("what an annotation means", func(t *testing.T) { testForbiddenValues(t, c) })
	for _, test := range updates {
		t.Run(test.name, func(t *testing.T) {
			expectForbidden(t, c.TryPatch(within(t, patience), test.kind, test.of, test.patch), test.says)
		})
	}
	// The policy does not check statuses that kubelets write: that would take time every few seconds for each pod.
	for _, test := range []struct{ group, of, says string }{
		{"system:nodes", "plain/status", ""}, {"system:nodes", "plain", "dev/pod"},
		{"system:serviceaccounts", "plain/status", "dev/pod"},
	} {
		t.Run(test.group+" annotates "+test.of, func(t *testing.T) {
			const annotates = `{metadata: {annotations: {rdma.noderesource.dev/pod: "true"}}}`
			expectForbidden(t, c.TryPatchAs(within(t, patience), test.group, "Pod", test.of, annotates), test.says)
		})
	}
	for kind, manifest := range workloads {
		restart := "Always"
		if strings.HasSuffix(kind, "Job") {
			restart = "Never"
		}
		const template = `{metadata: {labels: {a: b}}, spec: {restartPolicy: %s, containers: [{name: main, image: example.com/none:1, resources: {limits: {%s: 1}}}]}}`
		for resource, says := range map[string]string{"nvidia.com/gpu": "", "rdma/a": "(container main requests rdma/a)"} {
			t.Run(kind+" with "+resource, func(t *testing.T) {
				err := c.TryApply(within(t, patience), fmt.Sprintf(manifest, fmt.Sprintf(template, restart, resource)))
				expectForbidden(t, err, says)
			})
		}
	}
	for kind, manifest := range claimKinds {
		for requests, says := range claimed {
			t.Run(kind+" of "+requests, func(t *testing.T) {
				expectForbidden(t, c.TryApply(within(t, patience), fmt.Sprintf(manifest, requests)), says)
			})
		}
	}
	for _, resource := range []string{"bindings", "pods/plain/binding"} {
		for word, says := range map[string]string{"false": "", "true": `(annotation rdma.noderesource.dev: "true")`} {
			t.Run(resource+" annotate with "+word, func(t *testing.T) {
				expectForbidden(t, c.TryBind(within(t, patience), resource, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: "plain", Annotations: annotated{asks: word}},
					Target:     corev1.ObjectReference{Kind: "Node", Name: "node"},
				}), says)
			})
		}
	}

	const namespace = `{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {` + allowed + `: "%s"}}}`
	apply(t, c, fmt.Sprintf(namespace, "true"))
	awaitForbidden(t, c, false)
	apply(t, c, fmt.Sprintf(namespace, "yes"))
	awaitForbidden(t, c, true)
	t.Run("the list is wrong", func(t *testing.T) { testForbiddenWrong(t, c, forbid) })
}

// testForbiddenValues: the API server accepts exactly those values of the annotation that the plugin treats as an
// opt-out.
func testForbiddenValues(t *testing.T, c *cluster.Cluster) {
	values := []string{"false", " false", "false\n", "\tfalse\r\n", "False", "'false'", "false false", "no", "{memlock: 1Mi}",
		"{ipcLock: false}", "{devices: none}", "{memlock: 1Gi, ipcLock: false, devices: none}"}
	values = append(values, policy.AnnotationVocabulary().Words()...)
	for line := range strings.Lines(repository.Read(t, "plugin/policy/testdata/annotation.golden")) {
		if value, err := strconv.Unquote(strings.TrimSpace(line)); err == nil && utf8.ValidString(value) {
			values = append(values, value)
		}
	}
	decides, err := policy.New(policy.Default())
	if err != nil {
		t.Fatal(err)
	}
	optsOut := 0
	for _, value := range values {
		decision := decides.Decide(policy.Container{Namespace: "default", Name: "main", Annotations: annotated{asks: value}},
			policy.Facts{})
		says := "annotation " + asks
		if decision.Reason == "opted out by annotation" {
			says = ""
			optsOut++
		}
		t.Run(fmt.Sprintf("%.40q", value), func(t *testing.T) {
			_, err := c.Try(within(t, patience), podOf(annotated{asks: value}))
			expectForbidden(t, err, says)
		})
	}
	if optsOut < 4 || len(values) < 100 {
		t.Errorf("of %d values %d opt out: the tables are not those of the parser", len(values), optsOut)
	}
}

// testForbiddenWrong: if a glob is invalid, pods that might be RDMA pods are refused, and all others are created.
func testForbiddenWrong(t *testing.T, c *cluster.Cluster, forbid string) {
	apply(t, c, strings.Replace(forbid, `"rdma/*"`, `"rdma/("`, 1))
	var err error
	awaitThat(t, c, clusterPatience, "refuses a pod for the list's sake", func() bool {
		_, err = c.Try(within(t, patience), podOf(nil, ctr{limits: "nvidia.com/gpu"}))
		return err != nil
	})
	if !strings.Contains(err.Error(), "rdma-forbidden") {
		t.Errorf("the refusal does not name the policy: %v", err)
	}
	if _, err := c.Try(within(t, patience), podOf(nil, ctr{limits: "cpu"})); err != nil {
		t.Errorf("a plain pod: %v", err)
	}
}

// expectForbidden checks that the policy refused a request with these words, and says what to do. If says is "", it
// checks that the policy did not refuse the request.
func expectForbidden(t *testing.T, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Errorf("refused: %v", err)
	case says == "": // accepted, as expected
	case !apierrors.IsForbidden(err):
		t.Errorf("the error is %v, want a refusal that says %s", err, says)
	case !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), allowed+"=true"):
		t.Errorf("the refusal does not say %s, and what to do: %v", says, err)
	}
}

// awaitForbidden waits until the API server refuses RDMA pods, or accepts them if want is false.
func awaitForbidden(t *testing.T, c *cluster.Cluster, want bool) {
	t.Helper()
	var err error
	awaited := c.Await(within(t, clusterPatience), "forbids RDMA, or allows it", func() bool {
		_, err = c.Try(within(t, patience), podOf(annotated{asks: "true"}))
		return apierrors.IsForbidden(err) == want
	})
	if awaited != nil {
		t.Fatalf("%v\nIts last answer: %v", awaited, err)
	}
	if !want && err != nil {
		t.Fatal(err)
	}
}

// testQuota has the API server go by the quota. Its status comes from a controller, for which the test writes it.
func testQuota(t *testing.T, c *cluster.Cluster) {
	quota := admissionFile(t, "resource-quota.yaml")
	apply(t, c, quota)
	head, none, _ := strings.Cut(quota, "spec:\n  hard:\n")
	if err := c.ApplyStatus(within(t, patience), head+"status:\n  hard:\n"+none+"  used:\n"+none); err != nil {
		t.Fatal(err)
	}
	var err error
	awaited := c.Await(within(t, clusterPatience), "goes by the quota", func() bool {
		_, err = c.Try(within(t, patience), podOf(nil, ctr{limits: "rdma/ib"}))
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(),
			"exceeded quota: rdma, requested: requests.rdma/ib=1")
	})
	if awaited != nil {
		t.Fatalf("%v\nIts last answer: %v", awaited, err)
	}
	if _, err := c.Try(within(t, patience), podOf(nil, ctr{limits: "nvidia.com/gpu"})); err != nil {
		t.Errorf("a pod without RDMA: %v", err)
	}
	if err := c.Delete(within(t, patience), quota); err != nil {
		t.Fatal(err)
	}
}
