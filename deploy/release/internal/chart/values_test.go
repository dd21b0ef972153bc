// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// parse reads values as a user writes them, as Helm reads them.
func parse(t *testing.T, text string) Values {
	t.Helper()
	values := Values{}
	decode(t, text, &values)
	return values
}

// load reads the chart.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// try renders the chart with values as a user writes them, and render with values that it takes.
func try(t *testing.T, text string) (map[string]string, error) {
	t.Helper()
	return Render(load(t), release, parse(t, text))
}

func render(t *testing.T, text string) map[string]string {
	t.Helper()
	rendered, err := try(t, text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return rendered
}

// decode reads a manifest strictly: a field that Kubernetes does not know is an error.
func decode(t *testing.T, manifest string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(manifest), into); err != nil {
		t.Fatalf("%v:\n%s", err, manifest)
	}
}

// daemonSet returns the DaemonSet of a rendering.
func daemonSet(t *testing.T, rendered map[string]string) (set appsv1.DaemonSet) {
	t.Helper()
	decode(t, rendered["daemonset.yaml"], &set)
	return set
}

// configuration renders the chart with a configuration, and returns what the pods have.
func configuration(t *testing.T, config string) (string, error) {
	t.Helper()
	rendered, err := try(t, "{config: "+config+"}")
	if err != nil {
		return "", err
	}
	return policyOf(t, rendered), nil
}

// policyOf returns the policy that a DaemonSet's pods read: what an annotation of theirs has that a volume names.
func policyOf(t *testing.T, rendered map[string]string) string {
	t.Helper()
	set := daemonSet(t, rendered)
	for _, volume := range set.Spec.Template.Spec.Volumes {
		if volume.Name != "config" {
			continue
		}
		file := volume.Projected.Sources[0].DownwardAPI.Items[0]
		text, found := set.Spec.Template.Annotations[policyKey]
		if want := "metadata.annotations['" + policyKey + "']"; file.Path != "config.yaml" || file.FieldRef.FieldPath != want || !found {
			t.Errorf("the file %s is of %s, want %s", file.Path, file.FieldRef.FieldPath, want)
		}
		return text
	}
	t.Fatal("no volume has the policy")
	return ""
}

// policyKey is the annotation of the pods' template that has the policy.
const policyKey = "rdma-spec.github.io/policy"

// TestPolicy_inPodTemplate: a policy is a part of the pods' template, as it was given, and has no key that the user has not
// set: an older plugin may not know it.
func TestPolicy_inPodTemplate(t *testing.T) {
	for values, want := range map[string]string{
		"{}": "{}\n", "{config: {memlock: 1Gi, rules: [{match: {namespaces: [a]}, ipcLock: false}]}}": "memlock: 1Gi\nrules:\n- " +
			"ipcLock: false\n  match:\n    namespaces:\n    - a\n",
	} {
		if got := policyOf(t, render(t, values)); got != want {
			t.Errorf("%s gives the policy %q, want %q", values, got, want)
		}
	}
}

// TestChecks_largePolicy: a policy that is too large for each pod is refused with the way out, and what that costs.
func TestChecks_largePolicy(t *testing.T) {
	config := func(rules int) string {
		var b strings.Builder
		b.WriteString("{config: {rules: [")
		for i := range rules {
			fmt.Fprintf(&b, "{name: rule-%04d, match: {namespaces: [namespace-%04d]}},", i, i)
		}
		return b.String() + "]}}"
	}
	render(t, config(240))
	_, err := try(t, config(280))
	for _, want := range []string{"config has 17 KiB", "the limit is 16 KiB",
		"an immutable ConfigMap with the policy under the key config.yaml, and set the configMap value to the ConfigMap's name",
		"only a different name triggers a rollout of the DaemonSet. To be able to roll back, keep the old ConfigMaps"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a policy of 17 KiB: %v, want %q", err, want)
		}
	}
}

// TestSchemaRejectsWhatThePluginRejects: Helm refuses a configuration that the plugin refuses, before anything is
// installed.
func TestSchemaRejectsWhatThePluginRejects(t *testing.T) {
	for _, config := range []string{
		"{memlok: unlimited}", "{memlock: lots}", "{memlock: -1}", "{memlock: 0}", "{memlock: true}",
		"{memlock: [1]}", "{memlock: unchanged}",
		"{ipcLock: sometimes}", "{ipcLock: 1}", `{ipcLock: "yes"}`,
		"{optIn: {devices: 1}}", "{optIn: {annotations: [a]}}", "{optIn: {resources: rdma/*}}", "{optIn: [a]}",
		"{optIn: {mofedRuntimeHandlers: nvidia}}", "{optIn: {nvidiaMOFED: [nvidia]}}",
		"{inject: {functions: [imaginary]}}", "{inject: {linkLayers: [Token Ring]}}", "{inject: {numaNodes: [zero]}}",
		"{inject: {numaNodes: [0.5]}}",
		"{inject: {management: true}}", "{inject: {always: true}}",
		"{repair: {mode: fix}}",
		"{skipRuntimeHandlers: kata}", "{rules: {}}", "{rules: [{}]}", "{rules: [{name: all, memlock: 1Gi}]}",
		"{rules: [{match: {}}]}",
		"{rules: [{match: {namespaces: []}}]}", "{rules: [{match: {pods: [a]}}]}",
		"{rules: [{match: {resources: [a/b]}, inject: {management: true}}]}",
		"{memlock: 0.5}", `{memlock: "0.5"}`, `{memlock: 0Gi}`, `{memlock: 1ki}`, "{inject: {namespaces: ['']}}", "{inject: {namespaces: [a/b]}}",
		"{optIn: {resources: [rdma]}}", "{optIn: {namespaces: ['a b']}}", "{skipRuntimeHandlers: [a/b]}",
		"{rules: [{name: a, match: {namespaces: [a]}}, {name: a, match: {namespaces: [b]}}]}",
		"{rules: [{match: {namespaces: [a]}, repair: {mode: off}}]}", "{rules: [{match: {namespaces: [a]}, memlock: some}]}",
		"{rules: [{match: {namespaces: [1]}}]}", "{rules: [{match: {namespaces: [a]}, inject: {namespaces: [x]}}]}",
		"{rules: [{match: {namespaces: [a]}, inject: {functions: [vf]}}]}",
		"{rules: [{match: {namespaces: [a]}, inject: {management: 'x'}}]}",
	} {
		if _, err := configuration(t, config); err == nil {
			t.Errorf("the schema accepts the configuration %s", config)
		}
		if _, err := policy.FromText([]byte(config)); err == nil {
			t.Errorf("the plugin accepts the configuration %s, so this test says nothing", config)
		}
	}
}

// TestSchemaAcceptsWhatThePluginAccepts, and the plugin understands it as the pods have it.
func TestSchemaAcceptsWhatThePluginAccepts(t *testing.T) {
	configs := []string{
		"{}", "{memlock: memory-limit}", "{memlock: 16Gi}", "{memlock: 1.5Gi}", "{memlock: 17179869184}",
		`{memlock: "17179869184"}`, "{memlock: 1e9}", "{memlock: 0.5Gi}", "{memlock: 500k}",
		"{optIn: {resources: ['*/hca']}}",
		"{ipcLock: always}", "{ipcLock: requested}", `{skipRuntimeHandlers: [""]}`, `{optIn: {mofedRuntimeHandlers: ["nvidia*", ""]}}`,
		"{inject: {namespaces: [ml-*], functions: [physical, virtual, scalable], numaNodes: [-1, 0]}}",
		"{rules: [{name: a, match: {namespaces: [a]}, memlock: unchanged}, {match: {resources: [b/c]}, ipcLock: false, " +
			"inject: {always: true}}]}",
		"{rules: [{match: {namespaces: [a]}, inject: {management: true}}]}", "{rules: [{match: {namespaces: [a]}}]}",
		"{memlock: unlimited, ipcLock: true, optIn: {devices: true, resources: [], namespaces: []}, inject: {namespaces: [], " +
			"names: ['*'], linkLayers: [], netdevs: [], numaNodes: [], management: false}, rules: [{name: training, match: " +
			"{namespaces: [ml-*], resources: [rdma/rdma_v100]}, memlock: memory-limit}, {match: {namespaces: [fabric]}, inject: " +
			"{names: [mlx5_*], functions: [virtual], linkLayers: [InfiniBand], numaNodes: [0, 1]}}]}",
	}
	examples, err := filepath.Glob(filepath.Join(root, "deploy/examples/config*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples %v, %v", examples, err)
	}
	for _, file := range examples {
		asJSON, err := yaml.YAMLToJSON([]byte(scratch.Read(t, file)))
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, string(asJSON))
	}
	for _, config := range configs {
		want, err := policy.Parse([]byte(config))
		if err == nil {
			_, err = policy.New(want)
		}
		if err != nil {
			t.Errorf("the plugin rejects %s: %v", config, err)
			continue
		}
		text, err := configuration(t, config)
		if err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		if _, err := policy.FromText([]byte(text)); err != nil {
			t.Errorf("%s: the plugin rejects what the pods have: %v\n%s", config, err, text)
		}
	}
}

// TestSchemaRejects lists values beside the configuration that make no working installation.
func TestSchemaRejects(t *testing.T) {
	for _, values := range []string{
		"{imgae: {}}", "{image: {repository: ''}}", "{image: {repository: Registry.example.com/x}}", "{image: {tag: 'a b'}}",
		"{image: {digest: sha256:abc}}", "{image: {tag: 20240101}}", "{image: {tag: 'v1-dirty@'}}", "{image: {repository: 'r.example.com/x@'}}",
		"{image: {pullPolicy: Sometimes}}", "{runtime: docker}", "{kubeletRoot: relative}",
		"{kubeletRoot: /with/slash/}", "{privileges: all}",
		"{privileges: true}", "{validator: true}", "{validator: {enabled: 'yes'}}",
		"{config: {repair: {mode: fix}}}", "{privileges: repair}", "{repair: {every: soon}}", "{repair: {every: 0s}}", "{repair: true}",
		"{hostPID: 'yes'}", "{privileges: adjust}",
		"{privileges: adjust, config: {ipcLock: false, rules: [{match: {namespaces: [a]}, ipcLock: always}]}}",
		"{admission: {resources: []}}", `{admission: {resources: ['a"] + ["b']}}`, "{admission: {forbid: {action: Allow}}}",
		"{admission: {require: {apiVersion: v1}}}", "{runtimeClass: {handler: ''}}", "{podMonitor: {interval: often}}",
		"{podMonitor: {labels: {a: 1}}}",
		"{networkPolicy: {namespaces: monitoring}}", "{configureNRI: {enabled: true}}",
		"{nodeFeatureDiscovery: {labels: []}}",
		"{nodeFeatureDiscovery: {enabled: true}, affinity: {nodeAffinity: {}}}", "{updateStrategy: {type: Recreate}}",
		"{updateStrategy: {rollingUpdate: {maxSurge: 101%}}}", "{updateStrategy: {rollingUpdate: {maxSurge: half}}}",
		"{enabled: 1}", "{enabled: false}", "{openshift: {enabled: true}}", "{openshift: {enabled: true}, runtime: k3s}",
		"{global: {imageRegistry: 'a b'}}", "{global: {imagePullSecrets: [{nam: x}]}}", "{nameOverride: a_b}",
		"{fullnameOverride: A}", "{commonLabels: {a: 1}}", "{doctor: {enabled: 1}}", "{alerts: {runbooks: docs}}",
		"{alerts: {runbooks: 'https://example.com/'}}", "{admission: {forbid: {deviceClasses: ['a\"']}}}", "{index: '9'}",
		"{index: 100}", "{extraEnv: {a: b}}", "{extraContainers: [{image: x}]}", "{extraVolumes: [data]}",
		"{extraArgs: [validate]}", "{extraArgs: ['--http=:1']}", "{extraArgs: [--name=other]}", "{extraArgs: [--budget]}",
		"{tolerations: {}}", "{seLinuxType: 'x y'}", "{resources: {cpu: 1}}", "{nodeSelector: {a: true}}",
	} {
		if _, err := try(t, values); err == nil {
			t.Errorf("the schema accepts %s", values)
		}
	}
}

// TestChecksSayWhy: values that do not fit together are refused with the reason, and with what to set.
func TestChecksSayWhy(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]string{
		"{privileges: adjust}": "config.ipcLock: true needs privileges: ipcLock, not adjust",
		"{privileges: adjust, config: {ipcLock: false, rules: [{match: {namespaces: [a]}}, {match: {namespaces: [b]}, " +
			"ipcLock: always}]}}": "config.rules[1].ipcLock: always needs privileges",
		"{config: {inject: {management: true}}}": "config.inject.management must be false",
		"{configureNRI: {enabled: true}, runtime: k3s}": "configureNRI.enabled needs runtime: " +
			"crio, not k3s",
		"{nodeFeatureDiscovery: {enabled: true}, affinity: {nodeAffinity: {}}}": "both select the nodes",
		"{openshift: {enabled: true}, runtime: k3s}":                            "openshift.enabled needs runtime: crio, not k3s",
		"{global: {imageRegistry: 'oci://r.example.com/mirror'}}": "global.imageRegistry: oci://r.example.com/mirror contains a " +
			"scheme, but an image's name has no scheme: set global.imageRegistry: r.example.com/mirror",
		"{image: {repository: 'oci://r.example.com/x'}}": "image.repository: oci://r.example.com/x contains a scheme, but an " +
			"image's name has no scheme: set image.repository: r.example.com/x",
		"{image: {repository: 'https://r.example.com:5000/x:V1'}}": "an image's name has no scheme",
		"{image: {repository: 'r.example.com:5000/x:V1'}}": "r.example.com:5000/x:V1 contains a tag, but the chart appends a tag or a digest: " +
			"set image.repository: r.example.com:5000/x and image.tag: V1",
		"{image: {repository: 'r.example.com/x@" + digest + "'}}": "contains a digest, but the chart appends a tag or a digest: " +
			"set image.repository: r.example.com/x and image.digest: " + digest,
		"{image: {tag: 'v1.2.3@" + digest + "'}}":            "image.tag: v1.2.3@" + digest + " contains a digest: set image.digest: " + digest + ", which overrides the tag",
		"{alerts: {enabled: true, disabled: [NRIRDMAPort]}}": "alerts.disabled: no alert has the name NRIRDMAPort",
		"{hostNetwork: true, doctor: {enabled: true}}":       "doctor.enabled does not work with hostNetwork",
		"{hostNetwork: true, podMonitor: {enabled: true}}":   "podMonitor.enabled with hostNetwork needs hostNetworkMetrics",
		"{hostNetwork: true, alerts: {enabled: true}}":       "alerts.enabled with hostNetwork needs hostNetworkMetrics",
		"{hostNetwork: true, hostNetworkMetrics: '127.0.0.1:9797', podMonitor: {enabled: true}}": "podMonitor.enabled needs an " +
			"address in hostNetworkMetrics that Prometheus can reach, such as :9797, not 127.0.0.1:9797",
		"{hostNetworkMetrics: ':9797'}":             "hostNetworkMetrics needs hostNetwork: true",
		"{podMonitor: {enabled: true}}":             "podMonitor.enabled needs the namespace of Prometheus in networkPolicy.namespaces",
		"{configMap: mine, config: {memlock: 1Gi}}": "config and configMap both contain the policy",
		"{config: {rules: [{name: a, match: {namespaces: [a]}}, {name: a, match: {namespaces: [b]}}]}}": "config.rules[1].name: a is " +
			"also the name of an earlier rule",
		"{enabled: false}": "for a dependency with condition: nri-rdma.enabled",
		"{updateStrategy: {rollingUpdate: {maxSurge: 0}}}":       "one of maxSurge and maxUnavailable must be 0",
		"{updateStrategy: {rollingUpdate: {maxSurge: 0%}}}":      "exactly one of maxSurge and maxUnavailable must be 0",
		"{updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}": "exactly one of maxSurge and maxUnavailable must be 0",
	} {
		if _, err := try(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
	fits := render(t, "{privileges: adjust, config: {ipcLock: false, rules: [{match: {namespaces: [a]}}]}}")
	if fits["checks.yaml"] != "" {
		t.Errorf("values that fit together: %q", fits["checks.yaml"])
	}
}

// TestChecks_oldKubernetes: what a version of Kubernetes does not have is refused with the version that does.
func TestChecks_oldKubernetes(t *testing.T) {
	for values, versions := range map[string][2]string{ // the last that is refused, and the first that is not
		"{doctor: {enabled: true}}":               {"1.29.9", "1.30.0"},
		"{admission: {forbid: {enabled: true}}}":  {"1.29.9", "1.30.0"},
		"{admission: {require: {enabled: true}}}": {"1.35.1-eks-1", "1.36.0-rc.1"},
		"{admission: {require: {enabled: true, apiVersion: admissionregistration.k8s.io/v1beta1}}}":  {"1.33.0", "1.34.0"},
		"{admission: {require: {enabled: true, apiVersion: admissionregistration.k8s.io/v1alpha1}}}": {"1.31.0", "1.32.0"},
		"{}": {"", "1.25.0"},
	} {
		for i, version := range versions {
			if version == "" {
				continue
			}
			parsed, err := common.ParseKubeVersion("v" + version)
			if err != nil {
				t.Fatal(err)
			}
			_, err = renderOn(*parsed, load(t), release, parse(t, values))
			if refused := err != nil && strings.Contains(err.Error(), "needs Kubernetes "); refused != (i == 0) || err != nil && !refused {
				t.Errorf("%s with Kubernetes %s: %v", values, version, err)
			}
		}
	}
}

// TestKubeRBACProxy renders the values that put kube-rbac-proxy before the plugin's metrics: its port is open,
// the plugin's is not, and it alone has a token.
func TestKubeRBACProxy(t *testing.T) {
	rendered := render(t, read(t, "deploy/prometheus/kube-rbac-proxy.yaml"))
	checkFields(t, Objects(rendered))
	set := daemonSet(t, rendered)
	var policy networkingv1.NetworkPolicy
	decode(t, rendered["networkpolicy.yaml"], &policy)
	var withToken []string
	for _, c := range set.Spec.Template.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" {
				withToken = append(withToken, c.Name)
			}
		}
	}
	proxy := set.Spec.Template.Spec.Containers[1]
	if want := []string{"kube-rbac-proxy"}; !slices.Equal(withToken, want) || proxy.Name != want[0] || len(policy.Spec.Ingress) != 1 ||
		policy.Spec.Ingress[0].Ports[0].Port.IntVal != proxy.Ports[0].ContainerPort || len(policy.Spec.Egress) != 1 {
		t.Errorf("with a token: %v; container %+v; policy %+v", withToken, proxy, policy.Spec)
	}
}

// lintStrictly is helm lint --strict.
func lintStrictly(t *testing.T, name string, values Values) {
	t.Helper()
	linter := lint.RunAll(filepath.Join(root, Dir), values, namespace, lint.WithKubeVersion(&newest))
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("%s: %v", name, m)
		}
	}
	if len(linter.Messages) == 0 {
		t.Errorf("%s: helm lint looks at nothing: it always says that there is no icon", name)
	}
}
