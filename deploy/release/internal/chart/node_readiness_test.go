// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// TestNodeReadiness checks that the parts of deploy/node-readiness fit each other, and the plugin's DaemonSet: the
// reporter asks the plugin's own port, may do nothing else, and reports the condition that the rule waits for. They fit
// in any namespace, and taint no node until an administrator has labelled nodes and ended the dry run.
func TestNodeReadiness(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join(root, "deploy/node-readiness"))
	if err != nil {
		t.Fatal(err)
	}
	moved := scratch.Dir(t)
	if dir, err = filepath.Rel(moved, dir); err != nil {
		t.Fatal(err)
	}
	scratch.File(t, filepath.Join(moved, "kustomization.yaml"), "namespace: elsewhere\nresources: ["+dir+"]\n"+
		"images: [{name: registry.k8s.io/node-readiness-controller/node-readiness-reporter, newName: mirror.example.com/reporter}]\n",
		0o644)
	for namespace, dir := range map[string]string{"rdma-spec": filepath.Join(root, "deploy/node-readiness"), "elsewhere": moved} {
		t.Run(namespace, func(t *testing.T) { testNodeReadiness(t, namespace, build(t, dir)) })
	}
}

func testNodeReadiness(t *testing.T, namespace, built string) {
	var (
		set      appsv1.DaemonSet
		service  corev1.Service
		policy   networkingv1.NetworkPolicy
		role     rbacv1.ClusterRole
		binding  rbacv1.ClusterRoleBinding
		account  corev1.ServiceAccount
		readRule struct {
			Spec struct {
				Conditions   []struct{ Type, RequiredStatus string }
				Taint        corev1.Taint
				DryRun       bool
				NodeSelector metav1.LabelSelector
			}
		}
	)
	objects := map[string]any{"DaemonSet": &set, "Service": &service, "NetworkPolicy": &policy, "ClusterRole": &role,
		"ClusterRoleBinding": &binding, "ServiceAccount": &account}
	for _, object := range between.Split(built, -1) {
		kind := parse(t, object)["kind"].(string)
		into, known := objects[kind]
		delete(objects, kind)
		switch {
		case known:
			decode(t, object, into)
		case kind != "NodeReadinessRule":
			t.Errorf("nobody checks a %s", kind)
		default:
			if err := yaml.Unmarshal([]byte(object), &readRule); err != nil {
				t.Error(err)
			}
		}
	}
	if len(objects) > 0 {
		t.Fatalf("these are missing: %v", objects)
	}
	plugin := byKind(t, build(t, filepath.Join(root, "deploy/kustomize/base")))["DaemonSet"].(appsv1.DaemonSet)
	port := plugin.Spec.Template.Spec.Containers[0].Ports[0]
	pod := set.Spec.Template.Spec
	env := map[string]string{}
	for _, v := range pod.Containers[0].Env {
		env[v.Name] = v.Value
	}
	const gate = "rdma.noderesource.dev/gate"  // a label that no node has until an administrator sets it
	const partOf = "app.kubernetes.io/part-of" // of whatever release
	plugins := map[string]string{partOf: plugin.Spec.Template.Labels[partOf]}
	endpoint := env["CHECK_ENDPOINT"]
	for what, pair := range map[string][2]any{
		"the Service's pods":              {plugins, service.Spec.Selector},
		"the Service's namespace":         {namespace, service.Namespace},
		"the NetworkPolicy's namespace":   {namespace, policy.Namespace},
		"the reporter's namespace":        {namespace, set.Namespace},
		"the account's namespace":         {namespace, account.Namespace},
		"the bound account's namespace":   {namespace, binding.Subjects[0].Namespace},
		"whether it is a dry run":         {true, readRule.Spec.DryRun},
		"the nodes that have a reporter":  {map[string]string{corev1.LabelOSStable: "linux", gate: "true"}, pod.NodeSelector},
		"the nodes that have the taint":   {map[string]string{gate: "true"}, readRule.Spec.NodeSelector.MatchLabels},
		"the Service's port":              {port.ContainerPort, service.Spec.Ports[0].Port},
		"the Service's target":            {port.Name, service.Spec.Ports[0].TargetPort.StrVal},
		"the NetworkPolicy's pods":        {plugins, policy.Spec.PodSelector.MatchLabels},
		"the NetworkPolicy's port":        {port.ContainerPort, policy.Spec.Ingress[0].Ports[0].Port.IntVal},
		"who the NetworkPolicy lets in":   {set.Spec.Template.Labels, policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels},
		"the reporter's endpoint":         {"http://" + service.Name + ":9797/readyz", endpoint},
		"the reporter's condition":        {readRule.Spec.Conditions[0].Type, env["CONDITION_TYPE"]},
		"the reporter's account":          {account.Name, pod.ServiceAccountName},
		"the binding's account":           {account.Name, binding.Subjects[0].Name},
		"the binding's role":              {role.Name, binding.RoleRef.Name},
		"what the reporter tolerates":     {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations},
		"what the reporter's account can": {3, len(role.Rules)},
		"the status that is waited for":   {"True", readRule.Spec.Conditions[0].RequiredStatus},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			if !strings.Contains(verb, ":associated-node") {
				t.Errorf("the reporter may %s %v of all nodes", verb, rule.Resources)
			}
		}
	}
	if image := pod.Containers[0].Image; (namespace == "elsewhere") != strings.HasPrefix(image, "mirror.example.com/") {
		t.Errorf("the reporter's image is %s", image)
	}
	taint := readRule.Spec.Taint
	joins := "registerWithTaints: [{key: " + taint.Key + ", value: " + taint.Value + ", "
	if !strings.HasPrefix(taint.Key, "readiness.k8s.io/") || taint.Effect != corev1.TaintEffectNoSchedule ||
		!strings.Contains(read(t, "deploy/node-readiness/rule.yaml"), joins) {
		t.Errorf("the rule's taint is %+v", taint)
	}
}
