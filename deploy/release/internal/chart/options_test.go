// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// option is a value that a user sets, and what it changes in the default installation: lines of the manifests that come
// and go. Each is the beginning of a line.
type option struct {
	name, values string
	adds         []string // files
	has, lacks   []string // lines, by their beginning
}

var options = []option{
	{name: "image", values: "{image: {repository: r.example.com/x, tag: v9, pullPolicy: Always}}",
		has: []string{"image: r.example.com/x:v9", "imagePullPolicy: Always"}},
	{
		name: "digest", values: "{image: {tag: v9, digest: 'sha256:" + strings.Repeat("0a", 32) + "'}}",
		has:   []string{"image: ghcr.io/rdma-spec/rdma-spec@sha256:" + strings.Repeat("0a", 32)},
		lacks: []string{"image: ghcr.io/rdma-spec/rdma-spec:"},
	},
	{name: "pull secrets", values: "{imagePullSecrets: [{name: mine}], global: {imagePullSecrets: [yours, {name: theirs}]}}",
		// In the pods: they get the secrets of their service account only when they are created, and one that cannot pull the
		// image would never have those that are set later.
		has: []string{"imagePullSecrets:\n        - name: mine\n        - name: yours\n        - name: theirs"}},
	{
		name: "a registry for all charts", values: "{global: {imageRegistry: 'r.example.com:5000/mirror'}}",
		has:   []string{"image: r.example.com:5000/mirror/rdma-spec/rdma-spec:devel"},
		lacks: []string{"image: ghcr.io/"},
	},
	{
		name:   "a registry for all charts, and a repository without one",
		values: "{global: {imageRegistry: r.example.com/}, image: {repository: team/rdma-spec}}",
		has:    []string{"image: r.example.com/team/rdma-spec:devel"},
	},
	{name: "a dependency that is on", values: "{enabled: true}"},
	{
		name: "other names", values: "{nameOverride: plugin, fullnameOverride: mine}",
		has: []string{"name: mine", "app.kubernetes.io/name: plugin", "serviceAccountName: mine",
			"path: /run/rdma-spec/handover/rdma-spec.mine"},
		lacks: []string{"app.kubernetes.io/name: nri-rdma", "path: /run/rdma-spec/handover/rdma-spec.nri-rdma"},
	},
	{
		name: "another namespace", values: "{namespaceOverride: fabric, openshift: {enabled: true}, runtime: crio, podMonitor: {enabled: true}, alerts: {enabled: true}, " +
			"dashboard: {enabled: true}, execRole: {enabled: true}, networkPolicy: {namespaces: [monitoring]}}",
		adds:  []string{"dashboard.yaml", "podmonitor.yaml", "prometheusrule.yaml", "role.yaml", "scc.yaml"},
		has:   []string{"namespace: fabric", "path: /run/rdma-spec/handover/fabric.nri-rdma", "- system:serviceaccount:fabric:nri-rdma"},
		lacks: []string{"namespace: rdma-spec"},
	},
	{name: "another name", values: "{nameOverride: plugin}", has: []string{"name: nri-rdma-plugin"}},
	{name: "common labels", values: "{commonLabels: {team: hpc, app.kubernetes.io/name: other}}",
		has: []string{"team: hpc"}, lacks: []string{"app.kubernetes.io/name: other"}},
	{
		name: "the doctor's container", values: "{doctor: {enabled: true}, podMonitor: {enabled: true}, openshift: " +
			"{enabled: true}, runtime: crio, networkPolicy: {namespaces: [monitoring]}}",
		adds: []string{"podmonitor.yaml", "scc.yaml"},
		has: []string{"- name: doctor", "hostPID: true", "add: [DAC_OVERRIDE, SYS_PTRACE, SYSLOG]", "- name: node", "path: /",
			"- port: 9799", "port: doctor", "allowHostPID: true", "allowedCapabilities: [DAC_OVERRIDE, SYS_PTRACE, SYSLOG]"},
	},
	{name: "OnDelete", values: "{updateStrategy: {type: OnDelete}}", has: []string{"type: OnDelete"},
		lacks: []string{"maxSurge:", "rollingUpdate:"}},
	{name: "index", values: "{index: 85}", has: []string{"- --index=85"}, lacks: []string{"- --index=90"}},
	{
		name: "extras", values: "{extraEnv: [{name: GOMAXPROCS, value: '2'}], extraContainers: [{name: reporter, image: x}], " +
			"extraVolumes: [{name: token, emptyDir: {}}], validator: {enabled: true}}",
		has: []string{"- name: GOMAXPROCS", `value: "2"`, "name: reporter", "name: token"},
	},
	{
		name: "a mount", values: "{extraVolumes: [{name: ca, configMap: {name: ca}}], extraVolumeMounts: [{name: ca, mountPath: /etc/ssl/certs}]}",
		has: []string{"- mountPath: /etc/ssl/certs", "name: ca"},
	},
	{
		name: "objects", values: "{extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-more'}}, " +
			"{apiVersion: v1, kind: ServiceAccount, metadata: {name: second}}]}",
		adds: []string{"extra.yaml"}, has: []string{"name: 'nri-rdma-more'", "name: second"},
	},
	{name: "CRI-O", values: "{runtime: crio}", has: []string{"mountPath: /host/run/crio", "path: /run/crio"},
		lacks: []string{"path: /run/containerd", "mountPath: /host/run/containerd"}},
	{name: "k3s", values: "{runtime: k3s}", has: []string{"path: /run/k3s/containerd",
		"mountPath: /host/run/k3s/containerd", "path: /var/lib/kubelet/pod-resources"}},
	{name: "RKE2", values: "{runtime: rke2}", has: []string{"path: /run/k3s/containerd"}},
	{
		name: "MicroK8s", values: "{runtime: microk8s}",
		has: []string{"mountPath: /host/var/snap/microk8s/common/run",
			"path: /var/snap/microk8s/common/var/lib/kubelet/pod-resources"},
	},
	{name: "k0s", values: "{runtime: k0s}", has: []string{"path: /run/k0s", "path: /var/lib/k0s/kubelet/pod-resources"}},
	{name: "kubelet root", values: "{runtime: k0s, kubeletRoot: /data/kubelet}",
		has: []string{"path: /data/kubelet/pod-resources"}},
	{name: "what the doctor ignores", values: "{doctor: {ignore: [{check: port-*, object: HCA mlx5_4 *, reason: a spare}]}}",
		adds: []string{"configmap.yaml"},
		has:  []string{"- check: port-*", "object: HCA mlx5_4 *", "reason: a spare", "doctor.yaml: |", "ignore:"}},
	{name: "adjust", values: "{privileges: adjust, config: {ipcLock: false}}",
		lacks: []string{"path: /run/containerd"}},
	{
		name: "repair", values: "{repair: {enabled: true, every: 30s, resources: {limits: {memory: 4Mi}}}, privileges: adjust, config: " +
			"{ipcLock: false}, podMonitor: {enabled: true}, networkPolicy: {namespaces: [monitoring]}}",
		adds: []string{"podmonitor.yaml"},
		has: []string{"hostPID: true", "- name: repair", "- --every=30s", "- --http=:9796", "add: [SYS_RESOURCE]", "- name: node", "mountPath: /host\n",
			"port: repair", "memory: 4Mi"},
	},
	{name: "repair that reports", values: "{repair: {enabled: true, dryRun: true}}", has: []string{"hostPID: true", "- --dry-run"}},
	{name: "repair in the node's network", values: "{repair: {enabled: true}, hostNetwork: true}", has: []string{"- --every=1m"}},
	{name: "the node's processes", values: "{hostPID: true}", has: []string{"hostPID: true"}},
	{name: "validator", values: "{validator: {enabled: true}}", has: []string{"- --validate", "- name: validator",
		"containerPort: 9798"}},
	{
		name: "required plugin",
		values: "{admission: {require: {enabled: true, apiVersion: admissionregistration.k8s.io/v1beta1}, resources: " +
			"[a.example.com/*]}}",
		adds: []string{"admission-require.yaml"}, has: []string{"apiVersion: admissionregistration.k8s.io/v1beta1",
			`["a.example.com/*"]`},
	},
	{
		name: "RDMA forbidden", values: "{admission: {forbid: {enabled: true, action: Warn, runtimeClasses: [rdma, fast], " +
			"deviceClasses: [hca, 'efa-*']}}}",
		adds: []string{"admission-forbid.yaml"}, has: []string{"validationActions: [Warn]", `["rdma", "fast"]`,
			`["hca", "efa-*"]`},
	},
	{name: "RuntimeClass", values: "{runtimeClass: {enabled: true, name: fast, handler: slow}}",
		adds: []string{"runtimeclass.yaml"}, has: []string{"name: fast", "handler: slow"}},
	{
		name: "PodMonitor", values: "{podMonitor: {enabled: true, interval: 5s, labels: {release: mine}}, networkPolicy: {enabled: false}, validator: " +
			"{enabled: true}}",
		adds: []string{"podmonitor.yaml"}, has: []string{"kind: PodMonitor", "release: mine", "- interval: 5s",
			"port: metrics\n      #", "port: validator\n      #", "- action: replace"},
	},
	{
		name: "PodMonitor with more", values: "{podMonitor: {enabled: true, annotations: {a: b}, relabelings: [{targetLabel: zone, replacement: z}], " +
			"metricRelabelings: [{action: labeldrop, regex: link_layer}]}, networkPolicy: {enabled: false}}",
		adds: []string{"podmonitor.yaml"}, has: []string{"a: b", "- replacement: z", "- action: labeldrop", "honorLabels: true"},
	},
	{
		name: "PodMonitor in the node's network", values: "{hostNetwork: true, hostNetworkMetrics: ':9797', podMonitor: {enabled: true}, " +
			"alerts: {enabled: true}, validator: {enabled: true}}",
		adds:  []string{"podmonitor.yaml", "prometheusrule.yaml"},
		has:   []string{"- {action: replace, sourceLabels: [__meta_kubernetes_pod_ip]", "- interval: 30s\n      # With honorLabels"},
		lacks: []string{"containerPort:"},
	},
	{
		name: "all alerts but two", values: "{alerts: {enabled: true, annotations: {a: b}, disabled: [NRIRDMAPortDown, NRIRDMARefusals]}}",
		adds: []string{"prometheusrule.yaml"}, has: []string{"- alert: NRIRDMANodeRefuses", "a: b"},
		lacks: []string{"- alert: NRIRDMAPortDown", "- alert: NRIRDMARefusals"},
	},
	{name: "alerts", values: "{alerts: {enabled: true, labels: {release: mine}, runbooks: https://wiki.example.com/rdma}}",
		adds: []string{"prometheusrule.yaml"}, has: []string{"kind: PrometheusRule", "release: mine", "groups:",
			"runbook_url: https://wiki.example.com/rdma/"}, lacks: []string{"runbook_url: https://rdma-spec"}},
	{name: "an alert more", values: "{alerts: {enabled: true, labels: {release: mine}, registeredNothing: true}}",
		adds: []string{"prometheusrule.yaml"}, has: []string{"- alert: RDMAContainerRegisteredNothing", "name: nri-rdma-use"}},
	{name: "dashboard", values: "{dashboard: {enabled: true, annotations: {grafana_folder: HPC}}}", adds: []string{"dashboard.yaml"},
		has: []string{"grafana_folder: HPC", `grafana_dashboard: "1"`, "nri-rdma.json: |"}},
	{
		name: "rules of the network", values: "{networkPolicy: {namespaces: [], ingress: [{ports: [{port: 8443}]}], egress: [{ports: [{port: 443}]}]}}",
		has: []string{"- port: 8443", "- port: 443", "egress:"},
	},
	{
		name: "an account of one's own", values: "{serviceAccount: {create: false, name: mine}}",
		has: []string{"serviceAccountName: mine"}, lacks: []string{"kind: ServiceAccount"},
	},
	{name: "no account", values: "{serviceAccount: {create: false}}", has: []string{"serviceAccountName: default"},
		lacks: []string{"kind: ServiceAccount"}},
	{
		name: "annotations", values: "{annotations: {a: workload}, serviceAccount: {name: other, annotations: {b: account}}}",
		has: []string{"a: workload", "b: account", "name: other", "serviceAccountName: other"},
	},
	{
		name: "resources of each container", values: "{runtime: crio, configureNRI: {enabled: true, resources: {limits: {memory: 1Mi}}}, " +
			"validator: {enabled: true, resources: {limits: {memory: 2Mi}}}, doctor: {enabled: true, resources: {limits: {memory: 3Mi}}}, " +
			"extraInitContainers: [{name: first, image: x}]}",
		has: []string{"memory: 1Mi", "memory: 2Mi", "memory: 3Mi", "- image: x"},
	},
	{name: "no network policy", values: "{networkPolicy: {enabled: false}}", lacks: []string{"kind: NetworkPolicy"}},
	{name: "metrics for one", values: "{networkPolicy: {namespaces: [a]}}", has: []string{"ingress:", "- port: 9797"}},
	{name: "a Role", values: "{execRole: {enabled: true}}", adds: []string{"role.yaml"}, has: []string{"name: nri-rdma-exec",
		`- {apiGroups: [""], resources: [pods/exec], verbs: [create, get]}`}},
	{name: "metrics for two", values: "{networkPolicy: {namespaces: [a, b]}}",
		has: []string{"kubernetes.io/metadata.name: a", "kubernetes.io/metadata.name: b"}},
	{
		name: "OpenShift", values: "{openshift: {enabled: true}, runtime: crio}", adds: []string{"scc.yaml"},
		has: []string{"seLinuxOptions: {type: spc_t}", "openshift.io/required-scc: nri-rdma",
			"- system:serviceaccount:rdma-spec:nri-rdma", "allowHostPID: false", "allowedCapabilities: []"},
	},
	{
		name: "OpenShift with repair", values: "{openshift: {enabled: true}, runtime: crio, repair: {enabled: true}}", adds: []string{"scc.yaml"},
		has: []string{"allowHostPID: true", "allowedCapabilities: [SYS_RESOURCE]"},
	},
	{name: "SELinux", values: "{seLinuxType: my_t}", has: []string{"seLinuxOptions: {type: my_t}"}},
	{
		name: "NRI configured", values: "{configureNRI: {enabled: true}, runtime: crio}",
		has: []string{"- name: configure-nri", "- --runtime=crio", "mountPath: /host/etc/crio", "path: /var/lib/rdma-spec",
			"path: /var/run/nri\n            type: DirectoryOrCreate\n"}, // a node where NRI is off has no such directory
		lacks: []string{"- --restart", "path: /var/run/nri\n            type: Directory\n"},
	},
	{
		name: "NFD", values: "{nodeFeatureDiscovery: {enabled: true, labels: [a/b, c/d]}}",
		has: []string{`- {key: a/b, operator: In, values: ["true"]}`, `- {key: c/d, operator: In, values: ["true"]}`},
	},
	{name: "affinity", values: "{affinity: {nodeAffinity: {}}}", has: []string{"nodeAffinity: {}"},
		lacks: []string{"- {key: type, operator: NotIn, values: [virtual-kubelet]}", "- {key: eks.amazonaws.com/compute-type"}},
	{name: "affinity of pods", values: "{affinity: {podAffinity: {}}, nodeFeatureDiscovery: {enabled: true, labels: [a/b]}}",
		has: []string{"podAffinity: {}", `- {key: a/b`}},
	{name: "priority", values: "{priorityClassName: ''}", lacks: []string{"priorityClassName:"}},
	{
		name: "the node's network", values: "{hostNetwork: true, hostNetworkMetrics: '127.0.0.1:9797', validator: {enabled: true}}",
		has: []string{"hostNetwork: true", "- --http=unix:/run/nri-rdma/metrics.sock", "- --http=unix:/run/nri-rdma/validator.sock",
			"- --http-registered=127.0.0.1:9797", "command: [/usr/local/bin/nri-rdma, --ready=/run/nri-rdma/metrics.sock]",
			"command: [/usr/local/bin/nri-rdma, --ready=/run/nri-rdma/validator.sock]", "- name: sockets"},
		lacks: []string{"livenessProbe:", "containerPort:", "- --http=:9797", "httpGet:"},
	},
	{name: "minReadySeconds", values: "{minReadySeconds: 600}", has: []string{"minReadySeconds: 600"}, lacks: []string{"minReadySeconds: 5"}},
	{name: "a policy of one's own", values: "{configMap: policy-7}", has: []string{"name: policy-7", "items: [{key: config.yaml, path: config.yaml}]"},
		lacks: []string{"rdma-spec.github.io/policy:", "- downwardAPI:"}},
	{name: "surge", values: "{updateStrategy: {rollingUpdate: {maxSurge: 2}}}", has: []string{"maxSurge: 2"}},
	{name: "arguments", values: "{extraArgs: [--log-format=json]}", has: []string{`- "--log-format=json"`}},
	{
		name: "the pod's", values: "{nodeSelector: {a: b}, tolerations: [], podLabels: {c: d, app.kubernetes.io/name: x}, " +
			"podAnnotations: {e: f, kubectl.kubernetes.io/default-container: x}, resources: {limits: {memory: 1Gi}}}",
		has: []string{"a: b", "c: d", "e: f", "memory: 1Gi"}, lacks: []string{"tolerations:\n        - operator"},
	},
}

// TestOptions checks what each option changes, that helm lint --strict takes it, and that every manifest has only
// fields that Kubernetes knows.
func TestOptions(t *testing.T) {
	base := render(t, "{}")
	for _, test := range options {
		t.Run(test.name, func(t *testing.T) {
			rendered := render(t, test.values)
			lintStrictly(t, test.name, parse(t, test.values))
			added := slices.DeleteFunc(slices.Sorted(maps.Keys(rendered)), func(file string) bool { return base[file] != "" })
			if !slices.Equal(test.adds, added) {
				t.Errorf("it adds %v, want %v", added, test.adds)
			}
			text := Objects(rendered)
			for _, line := range test.has {
				if !hasLine(text, line) {
					t.Errorf("no line begins with %q", line)
				}
				if hasLine(Objects(base), line) && !strings.HasPrefix(line, "path: ") {
					t.Errorf("a line begins with %q without the option as well", line)
				}
			}
			for _, line := range test.lacks {
				if hasLine(text, line) {
					t.Errorf("a line begins with %q", line)
				}
				if !hasLine(Objects(base), line) && !slices.Contains(never, line) {
					t.Errorf("no line begins with %q without the option either", line)
				}
			}
			checkFields(t, text)
		})
	}
}

// never are lines that no option but one adds.
var never = []string{"hostPID:", "add:", "- --restart", "app.kubernetes.io/name: other", "runbook_url: https://rdma-spec",
	"- alert: NRIRDMAPortDown", "- alert: NRIRDMARefusals"}

func hasLine(text, begins string) bool {
	return regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(begins)).MatchString(text)
}

// checkFields decodes manifests strictly. Kinds of other projects have to be YAML only.
func checkFields(t *testing.T, text string) {
	t.Helper()
	kinds := map[string]func() any{
		"Role":                             func() any { return &rbacv1.Role{} },
		"ServiceAccount":                   func() any { return &corev1.ServiceAccount{} },
		"ConfigMap":                        func() any { return &corev1.ConfigMap{} },
		"NetworkPolicy":                    func() any { return &networkingv1.NetworkPolicy{} },
		"Pod":                              func() any { return &corev1.Pod{} },
		"DaemonSet":                        func() any { return &appsv1.DaemonSet{} },
		"RuntimeClass":                     func() any { return &nodev1.RuntimeClass{} },
		"MutatingAdmissionPolicy":          func() any { return &admissionv1.MutatingAdmissionPolicy{} },
		"MutatingAdmissionPolicyBinding":   func() any { return &admissionv1.MutatingAdmissionPolicyBinding{} },
		"ValidatingAdmissionPolicy":        func() any { return &admissionv1.ValidatingAdmissionPolicy{} },
		"ValidatingAdmissionPolicyBinding": func() any { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
		"PodMonitor":                       func() any { return &map[string]any{} },
		"PrometheusRule":                   func() any { return &map[string]any{} },
		"SecurityContextConstraints":       func() any { return &map[string]any{} },
	}
	for _, manifest := range strings.Split(text, "\n---\n") {
		var object struct{ Kind string }
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			t.Fatalf("%v:\n%s", err, manifest)
		}
		into, ok := kinds[object.Kind]
		if !ok {
			t.Errorf("unexpected kind %q", object.Kind)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(manifest), into()); err != nil {
			t.Errorf("%s: %v", object.Kind, err)
		}
	}
}

// TestOptions_allAreTested: a value without a test is one that nobody knows to work.
func TestOptions_allAreTested(t *testing.T) {
	tested := map[string]bool{"config": true} // in values_test.go
	for _, option := range options {
		for name := range parse(t, option.values) {
			tested[name] = true
		}
	}
	var untested []string
	for name := range load(t).Values {
		if !tested[name] {
			untested = append(untested, name)
		}
	}
	if len(untested) > 0 {
		t.Errorf("no test sets %v", untested)
	}
}

// TestNotes checks that the notes name the release's namespace, and what an option needs the reader to do.
func TestNotes(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                           "kubectl -n rdma-spec rollout status daemonset/nri-rdma",
		"{validator: {enabled: true}}": "-- rdma-spec status --root /host\n", // where the pod has the node
		"{configureNRI: {enabled: true}, runtime: crio}":        "restart CRI-O",
		"{admission: {forbid: {enabled: true}}}":                "rdma.noderesource.dev/allowed=true",
		"{admission: {forbid: {enabled: true, action: Audit}}}": "RDMA is recorded in the audit log",
		// no command that needs the runtime's socket
		"{privileges: adjust, config: {ipcLock: false}}": "logs POD -c nri-rdma\n\nTo find faults on a node",
		"{configMap: policy-7}":                          "The policy is in the policy-7 ConfigMap.",
		"{repair: {enabled: true}}":                      "The container named repair raises memlock for existing RDMA containers.",
		"{repair: {enabled: true, dryRun: true}}":        "recreate the pods, or raise",
	} {
		if notes := render(t, values)["NOTES.txt"]; !strings.Contains(notes, want) {
			t.Errorf("with %s the notes do not say %q:\n%s", values, want, notes)
		}
	}
}

// TestDaemonSet_probeTimeouts: during an update the DaemonSet's controller deletes an old pod that is not ready at once,
// although the new one is not ready yet. So a node where programs wait for the CPU must not make its plugin unready.
func TestDaemonSet_probeTimeouts(t *testing.T) {
	containers := daemonSet(t, render(t, "{validator: {enabled: true}}")).Spec.Template.Spec.Containers
	if len(containers) != 2 {
		t.Fatalf("%d containers", len(containers))
	}
	for _, c := range containers {
		if p := c.ReadinessProbe; p.TimeoutSeconds < 5 || p.PeriodSeconds*p.FailureThreshold < 60 {
			t.Errorf("%s is unready after %d failures every %d s, each after %d s", c.Name, p.FailureThreshold,
				p.PeriodSeconds, p.TimeoutSeconds)
		}
		if p := c.LivenessProbe; p.TimeoutSeconds < 10 {
			t.Errorf("%s is killed where it does not answer for %d s", c.Name, p.TimeoutSeconds)
		}
	}
}

// TestValues_null checks that a default that a user removes, as an empty key in a file of values does, leaves objects that
// Kubernetes knows, and a configuration that can be read.
func TestValues_null(t *testing.T) {
	rendered := render(t, "{affinity: null, nodeSelector: null, tolerations: null, "+
		"podLabels: null, podAnnotations: null, commonLabels: null, imagePullSecrets: null, resources: null, "+
		"extraEnv: null, priorityClassName: null, dashboard: {enabled: true, labels: null}}")
	checkFields(t, Objects(rendered))
	if text := policyOf(t, rendered); text != "{}\n" {
		t.Errorf("the policy is\n%s", text)
	}
	for values, want := range map[string]string{
		"{doctor: null}": "missing property 'doctor'", "{index: null}": "missing property 'index'",
		"{config: {inject: null}}": "at '/config/inject': got null, want object",
	} {
		if _, err := try(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}
