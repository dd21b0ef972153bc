// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/explain/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

const (
	listed   = "inject: {namespaces: [ml]}"
	optedIn  = `metadata: {name: a, namespace: ml, annotations: {rdma.noderesource.dev: "true"}}`
	plainPod = "metadata: {name: a, namespace: ml}"
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
		nothing    = "{containers: [{name: main}]}"
		mofed      = "{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: enabled}]}]}"
		privileged = "{containers: [{name: main, securityContext: {privileged: true}, resources: {limits: {rdma/hca: 1}}}]}"
	)
	for _, tt := range []struct {
		name, config, metadata, spec string
		explainer                    Explainer
		verdict                      Verdict
		summary                      string
		fails                        bool
	}{
		{name: "nothing", config: "{}", metadata: plainPod, spec: nothing, verdict: NotRDMA, summary: "not RDMA"},
		{name: "annotation", config: listed, metadata: optedIn, spec: nothing, verdict: RDMA,
			summary: "RDMA by annotation, rule default: memlock=unlimited ipc_lock=unless-dropped devices=uverbs0,rdma_cm"},
		{name: "annotation where none counts", config: "{}", metadata: optedIn, spec: nothing, verdict: Refused, fails: true,
			summary: `refused: namespace "ml" may not opt in by annotation, and `},
		{name: "left open", config: "{}", metadata: plainPod, spec: resource, verdict: IfInjected,
			summary: "RDMA if its device plugin injects verbs devices (rdma/hca), rule default: memlock=unlimited " +
				"ipc_lock=unless-dropped"},
		{name: "left open, several", config: "{}", metadata: plainPod, spec: two, verdict: IfInjected,
			summary: "RDMA if its device plugin or DRA driver injects verbs devices (nvidia.com/gpu, rdma/hca, claim/nic), " +
				"rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "left open, otherwise left alone", config: "{}", metadata: optedIn, spec: resource, verdict: IfInjected,
			summary: `RDMA if its device plugin injects verbs devices (rdma/hca), rule default: memlock=unlimited ipc_lock=unless-dropped; otherwise not RDMA: its pod's annotation is for the containers that hold RDMA: the pod holds "rdma/hca"`},
		{name: "left open, refused", config: "memlock: memory-limit", metadata: plainPod, spec: resource,
			verdict: IfInjected, fails: true,
			summary: "refused if its device plugin injects verbs devices (rdma/hca): memlock is the container's memory limit"},
		{name: "assumed", config: "{}", metadata: plainPod, spec: resource,
			explainer: Explainer{Assume: []string{"rdma/*"}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "a claim is left open by globs of resources", config: "{}", metadata: plainPod, spec: two,
			explainer: Explainer{Assume: []string{"x/*"}}, verdict: IfInjected,
			summary: "RDMA if its device plugin or DRA driver injects verbs devices (nvidia.com/gpu, rdma/hca, claim/nic), " +
				"rule default: "},
		{name: "a resource is left open by globs of claims", config: "{}", metadata: plainPod, spec: resource,
			explainer: Explainer{Assume: []string{"claim/x"}}, verdict: IfInjected,
			summary: "RDMA if its device plugin injects verbs devices (rdma/hca), rule default: "},
		{name: "nothing is assumed to inject", config: "{}", metadata: plainPod, spec: two,
			explainer: Explainer{Assume: []string{"x/*", "claim/x"}}, verdict: NotRDMA, summary: "not RDMA"},
		{name: "the pod's claim", config: "{}", metadata: plainPod,
			spec: "{resourceClaims: [{name: nic}], containers: [{name: main}]}", verdict: IfInjected,
			summary: "RDMA if its device plugin or DRA driver injects verbs devices (claim/nic), rule default: "},
		{name: "a DeviceClass as a resource", config: "{}", metadata: plainPod,
			spec:    "{containers: [{name: main, resources: {limits: {deviceclass.resource.kubernetes.io/nic: 1}}}]}",
			verdict: IfInjected,
			summary: "RDMA if its device plugin injects verbs devices (deviceclass.resource.kubernetes.io/nic), rule default: "},
		{name: "a claim is assumed", config: "{}", metadata: plainPod, spec: two,
			explainer: Explainer{Assume: []string{"x", "claim/nic"}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "another is assumed", config: "{}", metadata: plainPod, spec: resource,
			explainer: Explainer{Assume: []string{"nvidia.com/*"}}, verdict: NotRDMA, summary: "not RDMA"},
		{name: "assumed on a node without HCAs", config: "{}", metadata: plainPod, spec: resource,
			explainer: Explainer{Assume: []string{"rdma/*"}, Node: &hca.Inventory{}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "by resource", config: "optIn: {resources: [rdma/*]}", metadata: plainPod, spec: resource, verdict: RDMA,
			summary: "RDMA by resource, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "opted out", config: listed, metadata: strings.ReplaceAll(optedIn, "true", "false"), spec: resource,
			verdict: NotRDMA, summary: "not RDMA: opted out by annotation"},
		{name: "privileged", config: "{}", metadata: plainPod, spec: privileged,
			explainer: Explainer{Assume: []string{"rdma/*"}}, verdict: NotRDMA, summary: "not RDMA"},
		{name: "privileged, left open", config: "{}", metadata: plainPod, spec: privileged,
			verdict: NotRDMA, summary: "not RDMA"},
		{name: "environment", config: "optIn: {mofedRuntimeHandlers: [nvidia*]}", metadata: plainPod, spec: mofed,
			verdict: RDMA, summary: "RDMA by environment, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "environment by default", config: "{}", metadata: plainPod, spec: mofed, verdict: NotRDMA,
			summary: "not RDMA"},
		{name: "no HCA to inject", config: listed, metadata: optedIn, spec: nothing, explainer: Explainer{Node: &hca.Inventory{}},
			verdict: Refused, fails: true,
			summary: "refused: no HCA of this node can be injected"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := container(t, tt.explainer, tt.config, tt.metadata, tt.spec)
			if got.Verdict != tt.verdict || !strings.HasPrefix(got.Summary, tt.summary) || (got.Decision.Refusal != nil) != tt.fails {
				t.Errorf("got %s, fails: %t\n%s\nwant %s, fails: %t\n%s", got.Verdict, got.Decision.Refusal != nil, got.Summary,
					tt.verdict, tt.fails, tt.summary)
			}
			if (got.Otherwise != nil) != (tt.verdict == IfInjected) {
				t.Errorf("otherwise is %v", got.Otherwise)
			}
		})
	}
}

// TestSpec: what a grant adds to the OCI spec.
func TestSpec(t *testing.T) {
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
		{"all", listed, optedIn, "{containers: [{name: main}]}", `{"process":{` + unlimited + "," +
			capabilities + "}," + devices + "}"},
		{"by resource", byResource, plainPod, security(""), `{"process":{` + unlimited + "," + capabilities + "}}"},
		{"drop: [ALL]", byResource, plainPod, security("capabilities: {drop: [ALL]}"), `{"process":{` + unlimited + "}}"},
		{"drop: [all]", byResource, plainPod, security("capabilities: {drop: [all]}"), `{"process":{` + unlimited + "}}"},
		{"drop: [all], add: [ipc_lock]", byResource, plainPod, security("capabilities: {drop: [all], add: [ipc_lock]}"),
			`{"process":{` + unlimited + "," + capabilities + "}}"},
		{"drop: [chown]", byResource, plainPod, security("capabilities: {drop: [chown]}"), `{"process":{` + unlimited +
			"," + capabilities + "}}"},
		{"not RDMA", "{}", plainPod, "{containers: [{name: main}]}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(container(t, Explainer{}, tt.config, tt.metadata, tt.spec).Spec)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	for _, tt := range []struct{ name, config, metadata, spec, want string }{
		{"own users", listed, optedIn, "{hostUsers: false, containers: [{name: main}]}", "hostUsers: false: the kernel asks"},
		{"own users without IPC_LOCK", listed + "\nipcLock: false", optedIn,
			"{hostUsers: false, containers: [{name: main}]}", ""},
		{"all dropped", listed, optedIn, "{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}",
			"no CAP_IPC_LOCK: the manifest drops all"},
		{"all dropped in small letters", listed, optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {drop: [all]}}}]}",
			"no CAP_IPC_LOCK: the manifest drops all"},
		{"all dropped, and yet", listed + "\nrules: [{match: {namespaces: [ml]}, ipcLock: always}]", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}", ""},
		{"own IPC_LOCK", listed + "\nmemlock: 1Gi", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}",
			"the manifest itself adds IPC_LOCK, which voids the memlock of 1Gi"},
		{"own IPC_LOCK, unlimited", listed + "\nipcLock: false", optedIn,
			"{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}", ""},
		{"requested and not added", listed + "\nipcLock: requested", optedIn, "{containers: [{name: main}]}",
			"no CAP_IPC_LOCK: the policy leaves it to the manifest to add IPC_LOCK"},
		{"requested and added", listed + "\nipcLock: requested", optedIn,
			"{containers: [{name: main, securityContext: {runAsUser: 1000, capabilities: {add: [IPC_LOCK]}}}]}", ""},
		{"NVIDIA's variable where it does not count", "{}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: enabled}]}]}",
			"NVIDIA_MOFED=enabled: NVIDIA's container runtime adds HCAs after NRI, where the plugin does not see them: " +
				"optIn.mofedRuntimeHandlers lists"},
		{"NVIDIA's variable, which an image can set", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main}]}", "if its image, or what the manifest refers to, sets " +
				"NVIDIA_MOFED=enabled: RDMA by environment, rule default: "},
		{"NVIDIA's variable, from elsewhere", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, valueFrom: {}}]}]}",
			"if its image, or what the manifest refers to, sets NVIDIA_MOFED=enabled: "},
		{"NVIDIA's variable is off", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{runtimeClassName: nvidia, containers: [{name: main, env: [{name: NVIDIA_MOFED, value: '0'}]}]}", ""},
		{"NVIDIA's variable under another handler", "optIn: {mofedRuntimeHandlers: [nvidia]}", plainPod,
			"{containers: [{name: main}]}", ""},
		{"not backed by DRA", "{}", plainPod, "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}", ""},
		{"backed by DRA", "optIn: {resources: [rdma/*]}", plainPod,
			"{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}",
			"if DRA backs rdma/hca, the kubelet does not list it: RDMA if its device plugin injects verbs devices (rdma/hca), " +
				"rule default: "},
		{"injected as well", "optIn: {resources: [rdma/*]}\nrules: [{match: {resources: [rdma/*]}, inject: {always: true}}]",
			plainPod, "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}",
			"if its device plugin injects verbs devices (rdma/hca): RDMA by device, rule rules[0]: memlock=unlimited " +
				"ipc_lock=unless-dropped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := container(t, Explainer{}, tt.config, tt.metadata, tt.spec).Notes
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || !strings.HasPrefix(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestReasonsAndAdvice: why a container is no RDMA container, and what it gets with a smaller spec.
func TestReasonsAndAdvice(t *testing.T) {
	const (
		full   = ", rule default: memlock=unlimited ipc_lock=unless-dropped"
		opened = "{containers: [{name: main, %s, resources: {limits: {%s}}}]}"
		needs  = "with the plugin, RDMA does not need "
		asked  = ", and with resources: {limits: {RDMA-RESOURCE: 1}}, the result is: "
	)
	for _, tt := range []struct {
		name, config, metadata, spec string
		assume                       []string
		summary, advice              string
	}{
		{"nothing", "{}", plainPod, "{containers: [{name: main}]}", nil,
			"not RDMA: it has no extended resource, DRA claim, or annotation that gives it an HCA", ""},
		{"nothing that brings verbs devices", "{}", plainPod, fmt.Sprintf(opened, "image: x", "rdma/hca: 1"), []string{"x/*"},
			"not RDMA: by --assume-devices, no verbs device comes with rdma/hca", ""},
		{"devices do not count", "optIn: {devices: false}", plainPod, fmt.Sprintf(opened, "image: x", "rdma/hca: 1"), nil,
			"not RDMA: optIn.devices is false, and optIn.resources names no resource that it requests", ""},
		{"nothing where devices are refused", "memlock: memory-limit", plainPod, "{containers: [{name: main}]}", nil,
			"not RDMA: it has no extended resource, DRA claim, or annotation that gives it an HCA", ""},
		{"a runtime handler that is left alone", "{}", plainPod, "{runtimeClassName: kata, containers: [{name: main}]}", nil,
			`not RDMA: runtime handler "kata" is in skipRuntimeHandlers`, ""},
		{"opted out", listed, strings.ReplaceAll(optedIn, "true", "false"), "{containers: [{name: main}]}", nil,
			"not RDMA: opted out by annotation", ""},
		{"privileged, with a resource", "{}", plainPod, fmt.Sprintf(opened, "securityContext: {privileged: true}", "rdma/hca: 1"),
			nil, "not RDMA: it is privileged and holds every device of the node, so its devices are not a signal",
			needs + "privileged: true. Without it, the result is: RDMA if its device plugin injects verbs devices (rdma/hca)" + full},
		{"privileged, with GPUs", "{}", plainPod, fmt.Sprintf(opened, "securityContext: {privileged: true, capabilities: {add: "+
			"[IPC_LOCK]}}", "nvidia.com/gpu: 8"), nil,
			"not RDMA: it is privileged and holds every device of the node, so its devices are not a signal",
			needs + "privileged: true, capabilities.add: [IPC_LOCK]. Without it" + asked +
				"RDMA if its device plugin injects verbs devices (nvidia.com/gpu, RDMA-RESOURCE)" + full},
		{"privileged, with the annotation", listed, optedIn, "{containers: [{name: main, securityContext: {privileged: true}}]}", nil,
			"RDMA by annotation" + full + " devices=uverbs0,rdma_cm",
			needs + "privileged: true. Without it, the result is: RDMA by annotation" + full + " devices=uverbs0,rdma_cm"},
		{"a volume", "{}", plainPod, "{volumes: [{name: a, hostPath: {path: /dev/infiniband}}], containers: [{name: main, " +
			"volumeMounts: [{name: a}]}]}", nil,
			"not RDMA: it has no extended resource, DRA claim, or annotation that gives it an HCA",
			needs + "hostPath volume /dev/infiniband. Without it" + asked +
				"RDMA if its device plugin injects verbs devices (RDMA-RESOURCE)" + full},
		{"another volume", "{}", plainPod, "{volumes: [{name: a, hostPath: {path: /dev/shm}}, {name: b, hostPath: {path: /dev}}], " +
			"containers: [{name: main, volumeMounts: [{name: a}]}]}", nil,
			"not RDMA: it has no extended resource, DRA claim, or annotation that gives it an HCA", ""},
		{"IPC_LOCK, with a claim", "{}", plainPod, "{resourceClaims: [{name: nic}], containers: [{name: main, securityContext: " +
			"{capabilities: {add: [ipc_lock]}}}]}", nil,
			"RDMA if its device plugin or DRA driver injects verbs devices (claim/nic)" + full,
			needs + "capabilities.add: [IPC_LOCK]. Without it, the result is: RDMA if its device plugin or DRA driver injects verbs devices (claim/nic)" + full},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := container(t, Explainer{Assume: tt.assume}, tt.config, tt.metadata, tt.spec)
			if diff := cmp.Diff(tt.summary, got.Summary); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tt.advice, strings.Join(got.Advice, "\n")); diff != "" {
				t.Errorf("advice, -want +got:\n%s", diff)
			}
		})
	}
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
			"{containers: [{name: main}]}")
		if got.Verdict != RDMA {
			t.Errorf("%s: %s", layer, got.Summary)
		}
	}
}
