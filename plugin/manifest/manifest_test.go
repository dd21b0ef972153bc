// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
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
		{"generated name", "{apiVersion: v1, kind: Pod, metadata: {generateName: a-}, " + spec + "}", "1 Pod/a- in default (not said)"},
		{"Deployment", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {" + spec + "}}}", "1 Deployment/a spec.template in default (not said)"},
		{"CronJob", "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {" + spec + "}}}}}", "1 CronJob/a spec.jobTemplate.spec.template in default (not said)"},
		{"Volcano Job", "{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: a}, spec: {tasks: [{name: ps, template: {" + spec + "}}, {name: worker, template: {" + spec + "}}]}}",
			"1 Job/a spec.tasks[0].template in default (not said); 1 Job/a spec.tasks[1].template in default (not said)"},
		{"MPIJob", "{apiVersion: kubeflow.org/v2beta1, kind: MPIJob, metadata: {name: a}, spec: {mpiReplicaSpecs: {Worker: {template: {" + spec + "}}, Launcher: {template: {" + spec + "}}}}}",
			"1 MPIJob/a spec.mpiReplicaSpecs.Launcher.template in default (not said); 1 MPIJob/a spec.mpiReplicaSpecs.Worker.template in default (not said)"},
		{"PyTorchJob", "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: a}, spec: {pytorchReplicaSpecs: {Master: {template: {" + spec + "}}}}}",
			"1 PyTorchJob/a spec.pytorchReplicaSpecs.Master.template in default (not said)"},
		{"PodTemplate", "{apiVersion: v1, kind: PodTemplate, metadata: {name: a}, template: {" + spec + "}}", "1 PodTemplate/a template in default (not said)"},
		{"List", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: s}}, {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a, namespace: x}, spec: {template: {" + spec + "}}}]}",
			"1 StatefulSet/a spec.template in x"},
		{"documents", "# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n" + spec + "\n--- # next\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n" + spec + "\n---\n",
			"2 Pod/a in default (not said); 3 Pod/b in default (not said)"},
		{"JSON", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}`, "1 Pod/a in default (not said)"},
		{"none", "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [1]}}", ""},
		{"a CRD", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a}, spec: {properties: {spec: {containers: {type: array}}}}}", ""},
		{"a list of names", "{apiVersion: x/v1, kind: X, metadata: {name: a}, spec: {containers: [main]}}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var found []string
			for _, p := range read(t, tt.text).Pods {
				line := string(rune('0'+p.Document)) + " " + p.String() + " in " + p.Namespace
				if p.Unplaced {
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
  labels: {team: a}
  annotations: {rdma.noderesource.dev/pod: "true", other: x}
spec:
  runtimeClassName: nvidia
  hostUsers: false
  resources: {limits: {memory: 8Gi}}
  initContainers:
  - name: prepare
  - {name: proxy, restartPolicy: Always, resources: {requests: {rdma/a: 1}, limits: {rdma/a: 1, memory: 1e3}}}
  containers:
  - name: main
    securityContext: {privileged: true, capabilities: {add: [IPC_LOCK], drop: [ALL]}}
    volumeDevices: [{name: data, devicePath: /dev/infiniband/uverbs0}]
    resources:
      limits: {memory: 1.5Gi, cpu: 500m, rdma/b: "2", rdma/none: 0, hugepages-2Mi: 1Gi, foo.kubernetes.io/x: 1, kubernetes.io/y: 1}
      claims: [{name: nic-b}, {name: nic-a}]
  ephemeralContainers: [{name: debug}]
`)
	if len(m.Pods) != 1 || len(m.Problems)+len(m.Pods[0].Problems) > 0 {
		t.Fatalf("read %+v", m)
	}
	pod := m.Pods[0]
	if pod.RuntimeClass != "nvidia" || !pod.OwnUsers {
		t.Errorf("the pod is %+v", pod)
	}
	common := func(name string, memory int64) policy.Container {
		return policy.Container{
			Namespace: "ml", Pod: "a", Name: name, RuntimeHandler: "nvidia", MemoryLimit: memory,
			Annotations: map[string]string{"rdma.noderesource.dev/pod": "true", "other": "x"},
		}
	}
	main := common("main", 3<<29)
	main.AllDevices = true
	main.Devices = []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "b"}}
	want := []Container{
		{Container: common("prepare", 8<<30), Init: true},
		{Container: common("proxy", 1000), Init: true, Restartable: true, Held: []string{"rdma/a"}},
		{Container: main, Held: []string{"rdma/b"}, Claims: []string{"nic-a", "nic-b"}, AddCapabilities: []string{"IPC_LOCK"}, DropCapabilities: []string{"ALL"}},
	}
	told := [][]string{nil, {"rdma/a"}, {"rdma/b"}}
	for i := range pod.Containers {
		names, _, err := pod.Containers[i].Resources()
		if err != nil || !cmp.Equal(told[i], names) {
			t.Errorf("%s: the kubelet would tell %v, %v; want %v", pod.Containers[i].Name, names, err, told[i])
		}
		pod.Containers[i].Resources = nil
	}
	if diff := cmp.Diff(want, pod.Containers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestProblems(t *testing.T) {
	pod := func(annotations string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {" + annotations + "}}, spec: {containers: [{name: main}, {name: side}], ephemeralContainers: [{name: debug}]}}"
	}
	long := strings.Repeat("x", 54)
	for _, tt := range []struct{ name, text, want string }{
		{"good keys", pod(`rdma.noderesource.dev: "true", rdma.noderesource.dev/pod: "true", rdma.noderesource.dev/container.main: "true", rdma.noderesource.dev/container.debug: "true", other/key: x`), ""},
		{"too long", pod("rdma.noderesource.dev/container." + long + `: "true"`),
			"metadata.annotations: rdma.noderesource.dev/container." + long + " has 64 characters after the slash, Kubernetes allows 63: write rdma.noderesource.dev/pod, " +
				"which is for all containers of the pod, or give the container a name of at most 53"},
		{"longest", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {rdma.noderesource.dev/container." + long[1:] + `: "true"}}, spec: {containers: [{name: ` + long[1:] + "}]}}", ""},
		{"no such container", pod(`rdma.noderesource.dev/container.worker: "true"`),
			"metadata.annotations: rdma.noderesource.dev/container.worker has no effect, there is no container worker: the pod has main, side, debug"},
		{"scope left out", pod(`rdma.noderesource.dev/main: "true"`), "metadata.annotations: rdma.noderesource.dev/main has no effect: write rdma.noderesource.dev/container.main"},
		{"misspelt", pod(`rdma.noderesource.dev/pods: "true"`),
			"metadata.annotations: rdma.noderesource.dev/pods has no effect: write rdma.noderesource.dev, rdma.noderesource.dev/pod or rdma.noderesource.dev/container.NAME"},
		{"misspelt domain", pod(`rdma.noderesources.dev/container.main: "true"`), "metadata.annotations: rdma.noderesources.dev/container.main has no effect: write rdma.noderesource.dev/container.main"},
		{"former domain", pod(`rdma.nri.io: "true"`), "metadata.annotations: rdma.nri.io has no effect: write rdma.noderesource.dev"},
		{"no string", pod(`rdma.noderesource.dev/pod: true`), "metadata.annotations has for rdma.noderesource.dev/pod true or false: Kubernetes takes strings only: write it in quotes"},
		{"beside the template", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}, spec: {template: {spec: {containers: [{name: main}]}}}}`,
			"document 1, Deployment/a: annotation rdma.noderesource.dev/pod at metadata.annotations has no effect, only those of the pod template have: move it to spec.template.metadata.annotations"},
		{"beside the template of a List's item", `{apiVersion: v1, kind: List, items: [{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {metadata: {annotations: {rdma.noderesource.dev: "true"}}, spec: {template: {spec: {containers: [{name: main}]}}}}}}]}`,
			"document 1, CronJob/a: annotation rdma.noderesource.dev at spec.jobTemplate.metadata.annotations has no effect, only those of the pod template have: move it to spec.jobTemplate.spec.template.metadata.annotations"},
		{"on something else", `{apiVersion: v1, kind: Namespace, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}}`, ""},
		{"on something else beside a pod", `{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Namespace, metadata: {name: a, annotations: {rdma.noderesource.dev/pod: "true"}}}, {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}]}`, ""},
		{"wrong types", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {runtimeClassName: 1, initContainers: {}, containers: [{name: main, resources: {limits: {memory: lots}}, securityContext: {privileged: 'yes'}}, {image: x}]}}}}",
			"spec.template.spec.runtimeClassName is a number: expected a string\n" +
				"spec.template.spec.initContainers is keys and values: expected a list\n" +
				"spec.template.spec.containers[0].resources.limits.memory is no quantity such as 16Gi\n" +
				"spec.template.spec.containers[0].securityContext.privileged is a string: expected true or false\n" +
				"spec.template.spec.containers[1] has no name: a container needs one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := read(t, tt.text)
			problems := m.Problems
			for _, p := range m.Pods {
				problems = append(problems, p.Problems...)
			}
			if diff := cmp.Diff(tt.want, strings.Join(problems, "\n")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestBroken: one line, with the document and the line of the file.
func TestBroken(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"no YAML", "a: 1\n---\nb: 1\nc: [\n", "document 2: no YAML: line 4: did not find expected node content"},
		{"a key twice", "a: 1\n---\nb: 1\nb: 2\n", `document 2: no YAML: line 4: key "b" already set in map`},
		{"a tab", "a:\n\t- b\n", "document 1: no YAML: line 2: found character that cannot start any token"},
		{"a list", "- a\n", "document 1: it is a list: expected a Kubernetes object, keys and values"},
		{"a word", "---\nhello\n", "document 1: it is a string: expected a Kubernetes object, keys and values"},
		{"a template language", "a: {{ .Values.x }}\n", `document 1: no YAML: invalid map key: map[interface {}]interface {}{".Values.x":interface {}(nil)}`},
		{"too large", strings.Repeat("#\n", maxSize), "larger than 16 MiB: expected Kubernetes manifests"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tt.text))
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if m, err := Read(strings.NewReader("")); err != nil || len(m.Pods) > 0 {
		t.Errorf("nothing at all: %v, %v", m, err)
	}
}

// FuzzRead never fails in another way than with an error of one line.
func FuzzRead(f *testing.F) {
	f.Add([]byte("a: 1\n---\nb: {c: [d]}\n"))
	f.Add([]byte(`{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {rdma.noderesource.dev: true}}, spec: {containers: [{name: main, resources: {limits: {rdma/a: 1, memory: 1Gi}}}]}}`))
	f.Add([]byte("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: 1, spec: {hostUsers: 1, containers: [{env: [1], volumeDevices: [x]}]}}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := Read(strings.NewReader(string(text)))
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	})
}
