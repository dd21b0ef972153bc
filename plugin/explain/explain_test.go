// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/manifest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// base is a small spec that containers start from.
const base = `{"ociVersion":"1.0.2","process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_FSETID","CAP_FOWNER","CAP_MKNOD","CAP_NET_RAW",
"CAP_SETGID","CAP_SETUID"],"effective":["CAP_CHOWN"],"permitted":["CAP_CHOWN"]},"rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":1}]},
"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`

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
		resource   = "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}"
		two        = "{containers: [{name: main, resources: {limits: {rdma/hca: 1, nvidia.com/gpu: 8}, claims: [{name: nic}]}}]}"
		nothing    = "{containers: [{name: main}]}"
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
			summary: "RDMA if its device plugin injects verbs devices (rdma/hca), rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "left open, several", config: "{}", metadata: plainPod, spec: two, verdict: IfInjected,
			summary: "RDMA if its device plugin injects verbs devices (nvidia.com/gpu, rdma/hca, claim/nic), rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "left open, otherwise refused", config: "{}", metadata: optedIn, spec: resource, verdict: IfInjected,
			summary: `RDMA if its device plugin injects verbs devices (rdma/hca), rule default: memlock=unlimited ipc_lock=unless-dropped; otherwise refused: namespace "ml" may`},
		{name: "left open, refused", config: "memlock: memory-limit", metadata: plainPod, spec: resource, verdict: IfInjected, fails: true,
			summary: "refused if its device plugin injects verbs devices (rdma/hca): memlock is the container's memory limit"},
		{name: "assumed", config: "{}", metadata: plainPod, spec: resource, explainer: Explainer{Assume: []string{"rdma/*"}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "a claim is assumed", config: "{}", metadata: plainPod, spec: two, explainer: Explainer{Assume: []string{"x", "claim/nic"}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "another is assumed", config: "{}", metadata: plainPod, spec: resource, explainer: Explainer{Assume: []string{"nvidia.com/*"}}, verdict: NotRDMA, summary: "not RDMA"},
		{name: "assumed on a node without HCAs", config: "{}", metadata: plainPod, spec: resource, explainer: Explainer{Assume: []string{"rdma/*"}, Node: &hca.Node{}}, verdict: RDMA,
			summary: "RDMA by device, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "by resource", config: "optIn: {resources: [rdma/*]}", metadata: plainPod, spec: resource, verdict: RDMA,
			summary: "RDMA by resource, rule default: memlock=unlimited ipc_lock=unless-dropped"},
		{name: "opted out", config: listed, metadata: strings.ReplaceAll(optedIn, "true", "false"), spec: resource, verdict: NotRDMA, summary: "not RDMA: opted out by annotation"},
		{name: "privileged", config: "{}", metadata: plainPod, spec: privileged, explainer: Explainer{Assume: []string{"rdma/*"}}, verdict: NotRDMA, summary: "not RDMA"},
		{name: "privileged, left open", config: "{}", metadata: plainPod, spec: privileged, verdict: NotRDMA, summary: "not RDMA"},
		{name: "no HCA to inject", config: listed, metadata: optedIn, spec: nothing, explainer: Explainer{Node: &hca.Node{}}, verdict: Refused, fails: true,
			summary: "refused: no HCA of this node can be injected"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := container(t, tt.explainer, tt.config, tt.metadata, tt.spec)
			if got.Verdict != tt.verdict || !strings.HasPrefix(got.Summary, tt.summary) || got.Fails() != tt.fails {
				t.Errorf("got %s, fails: %t\n%s\nwant %s, fails: %t\n%s", got.Verdict, got.Fails(), got.Summary, tt.verdict, tt.fails, tt.summary)
			}
			if strings.HasPrefix(tt.name, "privileged") && len(got.Sources) > 0 {
				t.Errorf("%v could bring devices that matter, into a container that holds all", got.Sources)
			}
			if (got.Otherwise != nil) != (tt.verdict == IfInjected) {
				t.Errorf("otherwise is %v", got.Otherwise)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	capabilities := func(bounding, others string) []string {
		return []string{
			`+ process.capabilities.ambient[0]: "CAP_IPC_LOCK"`,
			`+ process.capabilities.bounding[` + bounding + `]: "CAP_IPC_LOCK"`,
			`+ process.capabilities.effective[` + others + `]: "CAP_IPC_LOCK"`,
			`+ process.capabilities.inheritable[0]: "CAP_IPC_LOCK"`,
			`+ process.capabilities.permitted[` + others + `]: "CAP_IPC_LOCK"`,
		}
	}
	const unlimited = `+ process.rlimits[1]: {"hard":18446744073709551615,"soft":18446744073709551615,"type":"RLIMIT_MEMLOCK"}`
	for _, tt := range []struct {
		name, base, config, spec string
		want                     []string
	}{
		{"no base", "", listed, "{containers: [{name: main}]}", nil},
		{"all", base, listed, "{containers: [{name: main}]}", append([]string{
			`+ linux.devices[0]: {"fileMode":438,"gid":0,"major":231,"minor":192,"path":"/dev/infiniband/uverbs0","type":"c","uid":0}`,
			`+ linux.devices[1]: {"fileMode":438,"gid":0,"major":10,"minor":58,"path":"/dev/infiniband/rdma_cm","type":"c","uid":0}`,
			`+ linux.resources.devices[1]: {"access":"rw","allow":true,"major":231,"minor":192,"type":"c"}`,
			`+ linux.resources.devices[2]: {"access":"rw","allow":true,"major":10,"minor":58,"type":"c"}`,
		}, append(capabilities("8", "1"), unlimited)...)},
		{"all capabilities dropped", base, listed + "\nrules: [{match: {namespaces: [ml]}, inject: {names: [mlx5_0]}}]", "{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}", []string{
			`+ linux.devices[0]: {"fileMode":438,"gid":0,"major":231,"minor":192,"path":"/dev/infiniband/uverbs0","type":"c","uid":0}`,
			`+ linux.devices[1]: {"fileMode":438,"gid":0,"major":10,"minor":58,"path":"/dev/infiniband/rdma_cm","type":"c","uid":0}`,
			`+ linux.resources.devices[1]: {"access":"rw","allow":true,"major":231,"minor":192,"type":"c"}`,
			`+ linux.resources.devices[2]: {"access":"rw","allow":true,"major":10,"minor":58,"type":"c"}`,
			unlimited,
		}},
		{"by resource, added by its author", base, "optIn: {resources: [rdma/*]}",
			"{containers: [{name: main, resources: {limits: {rdma/hca: 1}}, securityContext: {capabilities: {add: [IPC_LOCK], drop: [CHOWN]}}}]}",
			[]string{`+ process.capabilities.ambient[0]: "CAP_IPC_LOCK"`, `+ process.capabilities.inheritable[0]: "CAP_IPC_LOCK"`, unlimited}},
		{"privileged", base, listed + "\nrules: [{match: {namespaces: [ml]}, memlock: 1Gi}]", "{containers: [{name: main, securityContext: {privileged: true}}]}", []string{
			`+ linux.devices[0]: {"fileMode":438,"gid":0,"major":231,"minor":192,"path":"/dev/infiniband/uverbs0","type":"c","uid":0}`,
			`+ linux.devices[1]: {"fileMode":438,"gid":0,"major":10,"minor":58,"path":"/dev/infiniband/rdma_cm","type":"c","uid":0}`,
			`+ linux.resources.devices[1]: {"access":"rw","allow":true,"major":231,"minor":192,"type":"c"}`,
			`+ linux.resources.devices[2]: {"access":"rw","allow":true,"major":10,"minor":58,"type":"c"}`,
			`+ process.rlimits[1]: {"hard":1073741824,"soft":1073741824,"type":"RLIMIT_MEMLOCK"}`,
		}},
		{"raised", strings.Replace(base, `"rlimits":[`, `"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":65536,"soft":65536},`, 1), "{ipcLock: false, optIn: {resources: [rdma/*]}}",
			"{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}", []string{
				"- process.rlimits[0].hard: 65536\n+ process.rlimits[0].hard: 18446744073709551615",
				"- process.rlimits[0].soft: 65536\n+ process.rlimits[0].soft: 18446744073709551615",
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, c := range container(t, Explainer{Base: []byte(tt.base)}, tt.config, optedInOr(tt.config), tt.spec).Changes {
				got = append(got, c.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// optedInOr opts in where the configuration lets an annotation do so.
func optedInOr(config string) string {
	if strings.Contains(config, "namespaces: [ml]") {
		return optedIn
	}
	return plainPod
}

func TestNotes(t *testing.T) {
	for _, tt := range []struct{ name, config, metadata, spec, want string }{
		{"own users", listed, optedIn, "{hostUsers: false, containers: [{name: main}]}", "hostUsers: false: the kernel asks"},
		{"own users without IPC_LOCK", listed + "\nipcLock: false", optedIn, "{hostUsers: false, containers: [{name: main}]}", ""},
		{"all dropped", listed, optedIn, "{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}", "no CAP_IPC_LOCK: the manifest drops all"},
		{"all dropped, and yet", listed + "\nrules: [{match: {namespaces: [ml]}, ipcLock: always}]", optedIn, "{containers: [{name: main, securityContext: {capabilities: {drop: [ALL]}}}]}", ""},
		{"own IPC_LOCK", listed + "\nmemlock: 1Gi", optedIn, "{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}", "the manifest itself adds IPC_LOCK, which voids the memlock of 1Gi"},
		{"own IPC_LOCK, unlimited", listed + "\nipcLock: false", optedIn, "{containers: [{name: main, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}", ""},
		{"init container", "optIn: {resources: [rdma/*]}", plainPod, "{initContainers: [{name: main, resources: {limits: {rdma/hca: 1}}}], containers: [{name: x}]}", "the kubelet does not tell the resources of ordinary init containers"},
		{"init container, no rule by resource", "{}", plainPod, "{initContainers: [{name: main, resources: {limits: {rdma/hca: 1}}}], containers: [{name: x}]}", ""},
		{"sidecar", "optIn: {resources: [rdma/*]}", plainPod, "{initContainers: [{name: main, restartPolicy: Always, resources: {limits: {rdma/hca: 1}}}], containers: [{name: x}]}", ""},
		{"privileged", "{}", plainPod, "{containers: [{name: main, securityContext: {privileged: true}, resources: {limits: {rdma/hca: 1}}}]}", "it is privileged and holds every device"},
		{"injected as well", "optIn: {resources: [rdma/*]}\nrules: [{match: {resources: [rdma/*]}, inject: {always: true}}]", plainPod, "{containers: [{name: main, resources: {limits: {rdma/hca: 1}}}]}",
			"if its device plugin injects verbs devices (rdma/hca): RDMA by device, rule rules[0]: memlock=unlimited ipc_lock=unless-dropped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := container(t, Explainer{Base: []byte(base)}, tt.config, tt.metadata, tt.spec).Notes
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || !strings.HasPrefix(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
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
		got := container(t, Explainer{}, "inject: {namespaces: [ml], linkLayers: ["+layer+"]}", optedIn, "{containers: [{name: main}]}")
		if got.Verdict != RDMA {
			t.Errorf("%s: %s", layer, got.Summary)
		}
	}
}
