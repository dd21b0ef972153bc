// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

func read(t *testing.T, text string) Manifest {
	t.Helper()
	m, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPodTemplatesAreFound: whatever the kind, and however deep.
func TestPodTemplatesAreFound(t *testing.T) {
	const spec = "spec: {containers: [{name: main}]}"
	for _, tt := range []struct{ name, text, want string }{
		{"Pod", "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml}, " + spec + "}", "1 Pod/a in ml"},
		{"no namespace", "{apiVersion: v1, kind: Pod, metadata: {name: a}, " + spec + "}", "1 Pod/a in default (not said)"},
		{"generated name", "{apiVersion: v1, kind: Pod, metadata: {generateName: a-}, " + spec + "}",
			"1 Pod/a- in default (not said)"},
		{"Deployment", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {" + spec + "}}}",
			"1 Deployment/a spec.template in default (not said)"},
		{"CronJob", "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {" +
			spec + "}}}}}", "1 CronJob/a spec.jobTemplate.spec.template in default (not said)"},
		{"Volcano Job", "{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: a}, spec: {tasks: [{name: ps, " +
			"template: {" + spec + "}}, {name: worker, template: {" + spec + "}}]}}",
			"1 Job/a spec.tasks[ps].template in default (not said); 1 Job/a spec.tasks[worker].template in default (not said)"},
		{"MPIJob", "{apiVersion: kubeflow.org/v2beta1, kind: MPIJob, metadata: {name: a}, spec: {mpiReplicaSpecs: {Worker: " +
			"{template: {" + spec + "}}, Launcher: {template: {" + spec + "}}}}}",
			"1 MPIJob/a spec.mpiReplicaSpecs.Launcher.template in default (not said); 1 MPIJob/a " +
				"spec.mpiReplicaSpecs.Worker.template in default (not said)"},
		{"PyTorchJob", "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: a}, spec: {pytorchReplicaSpecs: " +
			"{Master: {template: {" + spec + "}}}}}",
			"1 PyTorchJob/a spec.pytorchReplicaSpecs.Master.template in default (not said)"},
		{"PodTemplate", "{apiVersion: v1, kind: PodTemplate, metadata: {name: a}, template: {" + spec + "}}",
			"1 PodTemplate/a template in default (not said)"},
		{"List", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: s}}, {apiVersion: " +
			"apps/v1, kind: StatefulSet, metadata: {name: a, namespace: x}, spec: {template: {" + spec + "}}}]}",
			"1 StatefulSet/a spec.template in x"},
		{"documents", "# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n" + spec +
			"\n--- # next\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n" + spec + "\n---\n",
			"2 Pod/a in default (not said); 3 Pod/b in default (not said)"},
		{"JSON", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}`,
			"1 Pod/a in default (not said)"},
		{"none", "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [1]}}", ""},
		{"a CRD", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a}, spec: " +
			"{properties: {spec: {containers: {type: array}}}}}", ""},
		{"a list of names", "{apiVersion: x/v1, kind: X, metadata: {name: a}, spec: {containers: [main]}}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var found []string
			for _, p := range read(t, tt.text).Pods {
				line := string(rune('0'+p.Document)) + " " + p.String() + " in " + p.Namespace
				if slices.Contains(p.Notes, "the manifest sets no namespace: the result is for namespace default") {
					line += " (not said)"
				}
				found = append(found, line)
				if len(p.Problems) > 0 {
					t.Errorf("problems: %v", p.Problems)
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(found, "; ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestContainers(t *testing.T) {
	m := read(t, `
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: ml
  annotations: {rdma.noderesource.dev/pod: "true", other: x}
spec:
  runtimeClassName: nvidia
  hostUsers: false
  hostNetwork: true
  resources: {limits: {memory: 8Gi}}
  resourceClaims: [{name: nic-pod, resourceClaimTemplateName: nic}]
  volumes: [{name: verbs, hostPath: {path: /dev/infiniband/}}, {name: other, hostPath: {path: /dev}}, {name: shm, emptyDir: {}}]
  initContainers:
  - {name: prepare, resources: {limits: {rdma/a: 1}}}
  - {name: proxy, restartPolicy: Always, resources: {requests: {rdma/a: 1}, limits: {rdma/a: 1, memory: 1e3}}}
  containers:
  - name: main
    securityContext: {privileged: true, capabilities: {add: [IPC_LOCK], drop: [all]}}
    volumeDevices: [{name: data, devicePath: /dev/infiniband/uverbs0}]
    volumeMounts: [{name: verbs, mountPath: /dev/infiniband}, {name: shm, mountPath: /dev/shm}]
    resources:
      limits: {memory: 1.5Gi, cpu: 500m, rdma/b: "2", rdma/none: 0, hugepages-2Mi: 1Gi, foo.kubernetes.io/x: 1, kubernetes.io/y: 1}
  - {name: claimed, securityContext: {capabilities: {add: [CHOWN], drop: [all]}}, resources: {limits: {rdma/b: 1}, claims: [{name: nic-b}, {name: nic-a}]}}
  - {name: implied, resources: {limits: {rdma/b: 1, deviceclass.resource.kubernetes.io/nic.example.com: 1}}}
  ephemeralContainers: [{name: debug}]
`)
	if len(m.Pods) != 1 || len(m.Problems)+len(m.Pods[0].Problems) > 0 {
		t.Fatalf("read %+v", m)
	}
	pod := m.Pods[0]
	if !pod.OwnUsers || len(pod.Notes) != 1 || !strings.HasPrefix(pod.Notes[0], "the handler of RuntimeClass nvidia ") {
		t.Errorf("the pod is %+v", pod)
	}
	common := func(name string, memory int64) policy.Container {
		return policy.Container{
			Namespace: "ml", Pod: "a", Name: name, RuntimeHandler: "nvidia", MemoryLimit: memory, HostNetwork: true,
			Annotations: map[string]string{"rdma.noderesource.dev/pod": "true", "other": "x"},
		}
	}
	main := common("main", 3<<29)
	main.AllDevices = true
	main.Devices = []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "b"}}
	ofPod, implied := []string{"nic-pod"}, "deviceclass.resource.kubernetes.io/nic.example.com"
	want := []Container{
		{Container: common("prepare", 8<<30), Kind: KindInit, Held: []string{"rdma/a"}, Claims: ofPod},
		{Container: common("proxy", 1000), Kind: KindSidecar, Held: []string{"rdma/a"}, Claims: ofPod},
		{Container: main, Kind: KindContainer, Held: []string{"rdma/b"}, Claims: ofPod,
			AddCapabilities: []string{"ALL", "IPC_LOCK"}, DropCapabilities: []string{"all"},
			Excess: []string{"privileged: true", "hostPath volume /dev/infiniband/", "capabilities.add: [IPC_LOCK]"}},
		{
			Container: common("claimed", 8<<30), Kind: KindContainer, Held: []string{"rdma/b"},
			Claims:          []string{"nic-a", "nic-b", "nic-pod"},
			AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"all"},
		},
		{Container: common("implied", 8<<30), Kind: KindContainer, Held: []string{implied, "rdma/b"}, Claims: ofPod},
		{Container: common("debug", 8<<30), Kind: KindEphemeral, Claims: ofPod},
	}
	type answer struct {
		Names []string
		Known bool
	}
	told := []answer{{[]string{}, false}, {[]string{"rdma/a"}, true}, {[]string{"rdma/b"}, true}, {[]string{"rdma/b"}, false},
		{[]string{"rdma/b"}, false}, {nil, false}}
	for i := range pod.Containers {
		kubelet := &pod.Containers[i].Kubelet
		if diff := cmp.Diff(told[i], answer{kubelet.Resources, kubelet.Known}); diff != "" {
			t.Errorf("%s: the kubelet would report, -want +got:\n%s", pod.Containers[i].Name, diff)
		}
		*kubelet = Report{}
	}
	if diff := cmp.Diff(want, pod.Containers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRead_otherShapes: pods that are no pod templates, and what is named since no pod can be read from it.
func TestRead_otherShapes(t *testing.T) {
	const resources = "resources: {limits: {rdma/ib: 1}}"
	object := func(spec string) string {
		return "{apiVersion: example.com/v1, kind: X, metadata: {name: a, namespace: x}, spec: {" + spec + "}}"
	}
	var says golden.Cases
	for _, tt := range []struct{ name, text string }{
		{"a bare pod spec", object("predictor: {containers: [{name: c, " + resources + "}]}")},
		{"two in one another", object("template: {containers: [{name: c}]}, prefill: {worker: {containers: [{name: d}]}, " +
			"containers: [{name: e}]}")},
		{"without a name", object("predictor: {containers: [{image: x}]}")},
		{"alone, with sidecars", object("templates: [{name: t, container: {image: x, " + resources + "}, sidecars: [{name: s}], " +
			"initContainers: [{name: i}]}]")},
		{"a script that is none", object("predictor: {containers: [{name: c}], script: echo}")},
		{"limits of a container without a list", object("predictor: {model: {" + resources + "}}")},
		{"limits of each node", object("trainer: {resourcesPerNode: {limits: {rdma/ib: 1}}}")},
		{"limits above containers", object("services: {w: {resources: {limits: {gpu: '8', custom: {rdma/ib: '8'}}}, extraPodSpec: " +
			"{mainContainer: {image: x}, containers: [{name: own, resources: {limits: {rdma/own: 1}}}]}}}")},
		{"the pod's own limits", object("template: {spec: {resources: {limits: {memory: 1Gi}}, containers: [{name: c}]}}")},
		{"objects below resources", object("resources: [{base: {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: " +
			"{containers: [{name: c}]}}}]")},
		{"a running pod", "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}, status: " +
			"{resize: {containers: [{name: d}]}}}"},
		{"values of a chart", "decode: {containers: [{name: c}]}"},
		{"overrides", object("podTemplateOverrides: [{spec: {initContainers: [{name: c}]}}]")},
		{"limits of nothing", object("limits: {cpu: 1000, nvidia.com/gpu: 8}")},
		{"a manifest as text", object(`manifest: "kind: Pod\nspec:\n  containers:\n  - {name: c}\n", text: "containers: many"`)},
		{"limits of another sort", object("limits: {rate: {per: minute}}, other: {limits: [1]}, none: {limits: {}}")},
		{"a placeholder", object("template: {container: {image: x, resources: {limits: {rdma/ib: '{{n}}'}}}}")},
		{"an annotation outside of the pod", "{apiVersion: example.com/v1, kind: X, metadata: {name: a, annotations: " +
			"{rdma.noderesource.dev: 'true'}}, spec: {predictor: {annotations: {rdma.noderesource.dev/pod: 'true'}, containers: [{name: c}]}}}"},
		{"JSON in a row", `{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}` +
			"\n" + `{"limits": {"cpu": 1}}{"limits": {"cpu": 2}}`},
		{"ends of documents and directives", "%YAML 1.1\n---\nlimits: {cpu: 1}\n...\n# b\n%YAML 1.1\n--- # c\nlimits: {cpu: 2}\n...\n" +
			"limits: {cpu: 3}\n"},
	} {
		m := read(t, tt.text)
		var found []string
		for _, p := range m.Pods {
			var containers []string
			for _, c := range p.Containers {
				containers = append(containers, strings.Join(append([]string{c.Name}, c.Held...), " "))
			}
			found = append(found, p.String()+": "+strings.Join(containers, ", "))
			if len(p.Problems)+len(m.Problems) > 0 {
				t.Errorf("%s: problems: %v, %v", tt.name, p.Problems, m.Problems)
			}
		}
		says.Add(t, tt.name, strings.Join(append(found, m.Unexplained...), "\n"))
	}
	says.Compare(t, "testdata/shapes.txt")
}

func TestRead_problems(t *testing.T) {
	pod := func(annotations string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {" + annotations +
			"}}, spec: {containers: [{name: main}, {name: side}], ephemeralContainers: [{name: debug}]}}"
	}
	long := strings.Repeat("x", 54)
	var says golden.Cases
	for _, tt := range []struct{ name, text string }{
		{"good keys",
			pod(`rdma.noderesource.dev: "true", rdma.noderesource.dev/pod: "true", rdma.noderesource.dev/container.main: "true", rdma.noderesource.dev/container.debug: "true", other/key: x`)},
		{"too long", pod("rdma.noderesource.dev/container." + long + `: "true"`)},
		{"longest", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {rdma.noderesource.dev/container." +
			long[1:] + `: "true"}}, spec: {containers: [{name: ` + long[1:] + "}]}}"},
		{"no such container", pod(`rdma.noderesource.dev/container.worker: "true"`)},
		{"scope left out", pod(`rdma.noderesource.dev/main: "true"`)},
		{"misspelt", pod(`rdma.noderesource.dev/pods: "true"`)},
		{"former domain", pod(`rdma.nri.io: "true"`)},
		{"not a string", pod(`rdma.noderesource.dev/pod: true`)},
		{"beside the template",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}, spec: {template: {spec: {containers: [{name: main}]}}}}`},
		{"beside the template of a List's item",
			`{apiVersion: v1, kind: List, items: [{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {metadata: {annotations: {rdma.noderesource.dev: "true"}}, spec: {template: {spec: {containers: [{name: main}]}}}}}}]}`},
		{"on something else",
			`{apiVersion: v1, kind: Namespace, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}}`},
		{"on something else beside a pod",
			`{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}}, {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}]}`},
		{"wrong type", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: " +
			"[{name: main, resources: x}]}}}}"},
		{"not a quantity", "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main, resources: " +
			"{limits: {memory: lots}}}]}}"},
		{"no name", "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{image: x}]}}"},
		{"wrong case", "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{Name: main}]}}"},
	} {
		m := read(t, tt.text)
		problems := m.Problems
		for _, p := range m.Pods {
			problems = append(problems, p.Problems...)
		}
		says.Add(t, tt.name, strings.Join(problems, "\n"))
	}
	says.Compare(t, "testdata/problems.txt")
}

// TestRead_brokenFile: one line, with the document and the line of the file.
func TestRead_brokenFile(t *testing.T) {
	var says golden.Cases
	for _, tt := range []struct{ name, text string }{
		{"not YAML", "a: 1\n---\nb: 1\nc: [\n"},
		{"a key twice", "a: 1\n---\nb: 1\nb: 2\n"},
		{"a tab", "a:\n\t- b\n"},
		{"a list", "- a\n"},
		{"a word", "---\nhello\n---\n"},
		{"JSON and not YAML", "{\"a\": 1}\n{\"b\": [}\n"},
		{"a key twice in JSON", `{"a": 1, "a": 2}`},
		{"a template language", "a: {{ .Values.x }}\n"},
		{"UTF-16", "\xff\xfea\x00:\x00 \x001\x00\n\x00"},
		{"too large", strings.Repeat("#\n", maxSize)},
	} {
		_, err := Read(strings.NewReader(tt.text))
		says.Add(t, tt.name, fmt.Sprint(err))
	}
	says.Compare(t, "testdata/broken.txt")
	if m, err := Read(strings.NewReader("")); err != nil || len(m.Pods) > 0 {
		t.Errorf("nothing at all: %v, %v", m, err)
	}
}

// Documents that say nothing are read in memory and time that grow with their size alone.
func TestRead_manySeparators(t *testing.T) {
	for _, line := range []string{"---\n", "---\r\n", "--- # nothing\n", "\n", "#\n---\n"} {
		text := strings.Repeat(line, 1<<20/len(line))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		quickest := time.Hour
		for range 3 { // the machine may be busy
			began := time.Now()
			read(t, text)
			quickest = min(quickest, time.Since(began))
		}
		runtime.ReadMemStats(&after)
		if allocated := (after.TotalAlloc - before.TotalAlloc) / 3; allocated > 50<<20 {
			t.Errorf("1 MiB of %q: %d MiB allocated, want 50 at most", line, allocated>>20)
		}
		if quickest > time.Second {
			t.Errorf("1 MiB of %q: read in %v, want 1s at most", line, quickest)
		}
	}
}

// An error is one line; what is read without one is whole, and separators around it change nothing.
func FuzzRead(f *testing.F) {
	f.Add("a: 1\n---\nb: {c: [d]}\n")
	f.Add(`{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {rdma.noderesource.dev: "true"}}, spec: {containers: [{name: main, resources: {limits: {rdma/a: 1, memory: 1Gi}}}]}}`)
	f.Add("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: 1, spec: {hostUsers: 1, " +
		"containers: [{name: a, volumeDevices: [x]}]}}]}")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Read(strings.NewReader(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		for _, pod := range m.Pods {
			if pod.Document < 1 || pod.Namespace == "" ||
				(len(pod.Containers) == 0) != slices.ContainsFunc(pod.Problems, refused) {
				t.Errorf("%+v: expected a document, a namespace, and containers unless Kubernetes refuses it", pod)
			}
			for _, c := range pod.Containers {
				names := c.Kubelet.Resources
				held := slices.IndexFunc(names, func(name string) bool { return !slices.Contains(c.Held, name) }) < 0
				if c.Name == "" || c.Namespace != pod.Namespace || c.MemoryLimit < 0 || !held {
					t.Errorf("container %+v with resources %q of pod %+v", c, names, pod)
				}
			}
		}
		again, err := Read(strings.NewReader("---\n" + text + "\n---\n"))
		if strings.HasPrefix(text, "%") || strings.HasPrefix(text, "\ufeff") { // a directive or a mark that must come first
			return
		}
		if err != nil || len(again.Pods) != len(m.Pods) || len(again.Problems) != len(m.Problems) {
			t.Errorf("with separators around it: %d pods and %d problems, %v; without: %d and %d",
				len(again.Pods), len(again.Problems), err, len(m.Pods), len(m.Problems))
		}
	})
}

func refused(problem string) bool { return strings.HasPrefix(problem, "Kubernetes refuses this pod: ") }
