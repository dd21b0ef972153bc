// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
)

const (
	listed   = "inject: {namespaces: [ml]}"
	optedIn  = `metadata: {name: a, namespace: ml, annotations: {rdma.noderesource.dev: "true"}}`
	plainPod = "metadata: {name: a, namespace: ml}"
	byGKE    = "metadata: {name: a, namespace: ml, annotations: {devices.gke.io/pod: '[{path: /dev/infiniband/uverbs0}]'}}"

	full      = ", rule default: memlock=unlimited ipc_lock=unless-dropped"
	opened    = "RDMA if its device plugin injects verbs devices (rdma/hca)"
	openedTwo = "RDMA if its device plugin or DRA driver injects verbs devices (nvidia.com/gpu, rdma/hca, claim/nic)"
	nothing   = "{containers: [{name: main}]}"
)

func container(t *testing.T, e Explainer, config, metadata, spec string) Container {
	t.Helper()
	p, err := policy.FromText([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Read(strings.NewReader("apiVersion: v1\nkind: Pod\n" + metadata + "\nspec: " + spec + "\n"))
	if err != nil || len(m.Pods) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	e.Policy = p
	if e.Node == nil {
		e.Node = SyntheticNode([]string{"mlx5_0"})
	}
	pod := m.Pods[0]
	out, err := e.Container(pod, pod.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestVerdicts(t *testing.T) {
	const (
		resource = "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"
		two      = "{containers: [{name: main, resources: {limits: {rdma/hca: 1, nvidia.com/gpu: 8}, claims: [{name: " +
			"nic}]}}]}"
		mofed      = "{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: enabled}]}]}"
		privileged = "{containers: [{name: main, securityContext: {privileged: true}, resources: {limits: {rdma/hca: 1}}}]}"
	)
	for _, tt := range []struct {
		name, config, metadata, spec string // by default no configuration, plainPod, and resource
		assume                       string // with commas
		without                      bool   // the node has no HCA
		verdict                      Verdict
		summary                      string
	}{
		{name: "nothing", spec: nothing, verdict: NotRDMA, summary: "not RDMA"},
		{name: "annotation", config: listed, metadata: optedIn, spec: nothing, verdict: RDMA,
			summary: "RDMA by annotation" + full + " devices=uverbs0,rdma_cm"},
		{name: "annotation where none counts", metadata: optedIn, spec: nothing, verdict: Refused,
			summary: `refused: the policy does not allow pods in namespace "ml" to opt in by annotation: `},
		{name: "left open", verdict: IfInjected, summary: opened + full},
		{name: "left open, several", spec: two, verdict: IfInjected, summary: openedTwo + full},
		{name: "left open, otherwise left alone", metadata: optedIn, verdict: IfInjected, summary: opened + full +
			`; otherwise not RDMA: the pod has been allocated "rdma/hca", so its annotation applies only to RDMA containers, and this container is not one`},
		{name: "left open, refused", config: "memlock: memory-limit", verdict: IfInjected,
			summary: "refused if its device plugin injects verbs devices (rdma/hca): rule \"default\" sets memlock to the container's memory limit"},
		{name: "assumed", assume: "rdma/*", verdict: RDMA, summary: "RDMA by device" + full},
		{name: "a claim is left open by globs of resources", spec: two, assume: "x/*", verdict: IfInjected, summary: openedTwo},
		{name: "a resource is left open by globs of claims", assume: "claim/x", verdict: IfInjected, summary: opened},
		{name: "nothing is assumed to inject", spec: two, assume: "x/*,claim/x", verdict: NotRDMA, summary: "not RDMA"},
		{name: "the pod's claim", spec: "{resourceClaims: [{name: nic}], containers: [{name: main}]}", verdict: IfInjected,
			summary: "RDMA if its device plugin or DRA driver injects verbs devices (claim/nic), rule default: "},
		{name: "a DeviceClass as a resource", verdict: IfInjected,
			spec:    "{containers: [{name: main, resources: {limits: {deviceclass.resource.kubernetes.io/nic: 1}}}]}",
			summary: "RDMA if its device plugin injects verbs devices (deviceclass.resource.kubernetes.io/nic), rule default: "},
		{name: "a claim is assumed", spec: two, assume: "x,claim/nic", verdict: RDMA, summary: "RDMA by device" + full},
		{name: "another is assumed", assume: "nvidia.com/*", verdict: NotRDMA, summary: "not RDMA"},
		{name: "assumed on a node without HCAs", assume: "rdma/*", without: true, verdict: RDMA, summary: "RDMA by device" + full},
		{name: "by resource", config: "optIn: {resources: [rdma/*]}", verdict: RDMA, summary: "RDMA by resource" + full},
		{name: "opted out", config: listed, metadata: strings.ReplaceAll(optedIn, "true", "false"), verdict: NotRDMA,
			summary: "not RDMA: opted out by annotation"},
		{name: "privileged", spec: privileged, assume: "rdma/*", verdict: NotRDMA, summary: "not RDMA"},
		{name: "privileged, left open", spec: privileged, verdict: NotRDMA, summary: "not RDMA"},
		{name: "environment", config: "optIn: {mofedRuntimeHandlers: [nvidia*]}", spec: mofed, verdict: RDMA,
			summary: "RDMA by environment" + full},
		{name: "environment by default", spec: mofed, verdict: NotRDMA, summary: "not RDMA"},
		{name: "no HCA to inject", config: listed, metadata: optedIn, spec: nothing, without: true, verdict: Refused,
			summary: "refused: no usable HCA on this node has an ACTIVE port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Explainer{}
			if tt.assume != "" {
				e.Assume = strings.Split(tt.assume, ",")
			}
			if tt.without {
				e.Node = &hca.Inventory{}
			}
			got := container(t, e, cmp.Or(tt.config, "{}"), cmp.Or(tt.metadata, plainPod), cmp.Or(tt.spec, resource))
			if got.Verdict != tt.verdict || !strings.HasPrefix(got.Summary, tt.summary) {
				t.Errorf("got %s\n%s\nwant %s\n%s", got.Verdict, got.Summary, tt.verdict, tt.summary)
			}
			if refused := strings.HasPrefix(tt.summary, "refused"); (got.Decision.Refusal != nil) != refused {
				t.Errorf("the refusal is %v", got.Decision.Refusal)
			}
			if (got.Otherwise != nil) != (tt.verdict == IfInjected) {
				t.Errorf("otherwise is %v", got.Otherwise)
			}
		})
	}
}

// TestExplainer_spec: what a grant adds to the OCI spec.
func TestExplainer_spec(t *testing.T) {
	const (
		devices = `"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192,"fileMode":438,"uid":0,"gid":0},` +
			`{"path":"/dev/infiniband/rdma_cm","type":"c","major":10,"minor":58,"fileMode":438,"uid":0,"gid":0}],` +
			`"resources":{"devices":[{"allow":true,"type":"c","major":231,"minor":192,"access":"rw"},{"allow":true,"type":"c","major":10,"minor":58,"access":"rw"}]}}`
		unlimited    = `"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]`
		lock         = `["CAP_IPC_LOCK"]`
		capabilities = `"capabilities":{"bounding":` + lock + `,"effective":` + lock + `,"permitted":` + lock +
			`,"inheritable":` + lock + `,"ambient":` + lock + `}`
		byResource = "optIn: {resources: [rdma/*]}"
	)
	security := func(text string) string {
		return "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}, securityContext: {" + text + "}}]}"
	}
	for _, tt := range []struct{ name, config, metadata, spec, want string }{
		{"all", listed, optedIn, nothing, `{"process":{` + unlimited + "," +
			capabilities + "}," + devices + "}"},
		{"by resource", byResource, plainPod, security(""), `{"process":{` + unlimited + "," + capabilities + "}}"},
		{"drop: [ALL]", byResource, plainPod, security("capabilities: {drop: [ALL]}"), `{"process":{` + unlimited + "}}"},
		{"drop: [all]", byResource, plainPod, security("capabilities: {drop: [all]}"), `{"process":{` + unlimited + "}}"},
		{"drop: [all], add: [ipc_lock]", byResource, plainPod, security("capabilities: {drop: [all], add: [ipc_lock]}"),
			`{"process":{` + unlimited + "," + capabilities + "}}"},
		{"drop: [chown]", byResource, plainPod, security("capabilities: {drop: [chown]}"), `{"process":{` + unlimited +
			"," + capabilities + "}}"},
		{"not RDMA", "{}", plainPod, nothing, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := gocmp.Diff(tt.want, string(container(t, Explainer{}, tt.config, tt.metadata, tt.spec).Spec)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestExplainer_notes(t *testing.T) {
	var says golden.Cases
	for _, tt := range []struct{ name, config, metadata, spec string }{
		{"own users", listed, optedIn, "{hostUsers: false, containers: [{name: main}]}"},
		{"own users without IPC_LOCK", listed + "\nipcLock: false", optedIn,
			"{hostUsers: false, containers: [{name: main}]}"},
		{"own users and own IPC_LOCK", "memlock: 1Gi\n" + listed, optedIn,
			"{hostUsers: false, containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}"},
		{"own users, own IPC_LOCK, no RDMA", "{}", plainPod,
			"{hostUsers: false, containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}"},
		{"own users, privileged", "{}", plainPod,
			"{hostUsers: false, containers: [{name: main, securityContext: {privileged: true}}]}"},
		{"own users, refused", "{}", optedIn,
			"{hostUsers: false, containers: [{name: main, securityContext: {privileged: true}}]}"},
		{"all dropped", listed, optedIn, "{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}"},
		{"all dropped in small letters", listed, optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {drop: [all]}}}]}"},
		{"all dropped, and yet", listed + "\nrules: [{match: {namespaces: [ml]}, ipcLock: always}]", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}"},
		{"own IPC_LOCK", listed + "\nmemlock: 1Gi", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}"},
		{"own IPC_LOCK, unlimited", listed + "\nipcLock: false", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}"},
		{"requested and not added", listed + "\nipcLock: requested", optedIn, nothing},
		{"requested and added", listed + "\nipcLock: requested", optedIn,
			"{containers: [{name: main, securityContext: {runAsUser: 1000, capabilities: {add: [IPC_LOCK]}}}]}"},
		{"NVIDIA's variable where it does not count", "{}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: enabled}]}]}"},
		{"NVIDIA's variable, which an image can set", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main}]}"},
		{"NVIDIA's variable, from elsewhere", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, valueFrom: {}}]}]}"},
		{"NVIDIA's variable is off", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: '0'}]}]}"},
		{"NVIDIA's variable under another handler", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			nothing},
		{"not backed by DRA", "{}", plainPod, "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"},
		{"backed by DRA", "optIn: {resources: [rdma/*]}", plainPod,
			"{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"},
		{"injected as well", "optIn: {resources: [rdma/*]}\nrules: [{match: {resources: [rdma/*]}, inject: {always: true}}]",
			plainPod, "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"},
		{"a device that its author names", "{}", byGKE, nothing},
		{"a device that its author names where he may opt in", "optIn: {namespaces: [ml]}", byGKE, nothing},
		{"a device that its author names beside an HCA of a device plugin", "{}", byGKE,
			"{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"},
		{"a GPU that its author names", "{}", strings.ReplaceAll(byGKE, "infiniband/uverbs0", "nvidia0"), nothing},
	} {
		notes := container(t, Explainer{}, tt.config, tt.metadata, tt.spec).Notes
		says.Add(t, tt.name, strings.Join(notes, "\n"))
	}
	says.Compare(t, "testdata/notes.txt")
}

// TestReasonsAndAdvice: why a container is no RDMA container, and what it gets with a smaller spec.
func TestReasonsAndAdvice(t *testing.T) {
	const holds = "{containers: [{name: main, %s, resources: {limits: {%s}}}]}"
	var says golden.Cases
	for _, tt := range []struct {
		name, config, metadata, spec string
		assume                       []string
	}{
		{"nothing", "{}", plainPod, nothing, nil},
		{"nothing that brings verbs devices", "{}", plainPod, fmt.Sprintf(holds, "image: x", "rdma/hca: 1"), []string{"x/*"}},
		{"devices do not count", "optIn: {devices: false}", plainPod, fmt.Sprintf(holds, "image: x", "rdma/hca: 1"), nil},
		{"nothing where devices are refused", "memlock: memory-limit", plainPod, nothing, nil},
		{"a runtime handler that is left alone", "{}", plainPod, "{runtimeClassName: kata, containers: [{name: main}]}", nil},
		{"opted out", listed, strings.ReplaceAll(optedIn, "true", "false"), nothing, nil},
		{"privileged, with a resource", "{}", plainPod, fmt.Sprintf(holds, "securityContext: {privileged: true}", "rdma/hca: 1"),
			nil},
		{"privileged, with GPUs", "{}", plainPod, fmt.Sprintf(holds, "securityContext: {privileged: true, capabilities: {add: "+
			"[IPC_LOCK]}}", "nvidia.com/gpu: 8"), nil},
		{"privileged, with the annotation", listed, optedIn, "{containers: [{name: main, securityContext: {privileged: true}}]}", nil},
		{"a volume", "{}", plainPod, "{volumes: [{name: a, hostPath: {path: /dev/infiniband}}], containers: [{name: main, " +
			"volumeMounts: [{name: a}]}]}", nil},
		{"another volume", "{}", plainPod, "{volumes: [{name: a, hostPath: {path: /dev/shm}}, {name: b, hostPath: {path: /dev}}], " +
			"containers: [{name: main, volumeMounts: [{name: a}]}]}", nil},
		{"IPC_LOCK, with a claim", "{}", plainPod, "{resourceClaims: [{name: nic}], containers: [{name: main, securityContext: " +
			"{capabilities: {add: [ipc_lock]}}}]}", nil},
	} {
		got := container(t, Explainer{Assume: tt.assume}, tt.config, tt.metadata, tt.spec)
		says.Add(t, tt.name, strings.Join(append([]string{got.Summary}, got.Advice...), "\n"))
	}
	says.Compare(t, "testdata/advice.txt")
}

// TestSyntheticNode passes what it says it passes.
func TestSyntheticNode(t *testing.T) {
	node := SyntheticNode([]string{"a", "b"})
	for i, name := range []string{"a", "b"} {
		h, ok := node.Find(name)
		verbs, sound := h.Verbs()
		if !ok || !h.Active() || !sound || !verbs.Sound() || verbs.Minor != uint32(192+i) {
			t.Errorf("%s is %+v", name, h)
		}
		if d, ok := node.Lookup(verbs.Number); !ok || d.HCA != name {
			t.Errorf("%s: found %+v", verbs.Number, d)
		}
	}
	for _, layer := range []string{"InfiniBand", "Ethernet"} {
		got := container(t, Explainer{}, "inject: {namespaces: [ml], linkLayers: ["+layer+"]}", optedIn,
			nothing)
		if got.Verdict != RDMA {
			t.Errorf("%s: %s", layer, got.Summary)
		}
	}
}
