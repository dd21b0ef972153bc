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
	"sigs.k8s.io/yaml"
)

// TestNodeReadiness checks that the parts of deploy/node-readiness fit each other, and the plugin's DaemonSet: the
// reporter asks the plugin's own port, may do nothing else, and reports the condition that the rule waits for.
func TestNodeReadiness(t *testing.T) {
	var (
		set      appsv1.DaemonSet
		service  corev1.Service
		policy   networkingv1.NetworkPolicy
		role     rbacv1.ClusterRole
		binding  rbacv1.ClusterRoleBinding
		account  corev1.ServiceAccount
		readRule struct {
			Spec struct {
				Conditions []struct{ Type, RequiredStatus string }
				Taint      corev1.Taint
			}
		}
	)
	objects := map[string]any{"DaemonSet": &set, "Service": &service, "NetworkPolicy": &policy, "ClusterRole": &role,
		"ClusterRoleBinding": &binding, "ServiceAccount": &account}
	for _, object := range between.Split(build(t, filepath.Join(root, "deploy/node-readiness")), -1) {
		kind := parse(t, object)["kind"].(string)
		into, known := objects[kind]
		delete(objects, kind)
		var err error
		switch {
		case known:
			err = yaml.UnmarshalStrict([]byte(object), into)
		case kind == "NodeReadinessRule":
			err = yaml.Unmarshal([]byte(object), &readRule)
		default:
			t.Errorf("nobody checks a %s", kind)
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
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
	const partOf = "app.kubernetes.io/part-of" // of whatever release
	plugins := map[string]string{partOf: plugin.Spec.Template.Labels[partOf]}
	endpoint := env["CHECK_ENDPOINT"]
	for what, pair := range map[string][2]any{
		"the Service's pods":              {plugins, service.Spec.Selector},
		"the Service's namespace":         {plugin.Namespace, service.Namespace},
		"the Service's port":              {port.ContainerPort, service.Spec.Ports[0].Port},
		"the Service's target":            {port.Name, service.Spec.Ports[0].TargetPort.StrVal},
		"the NetworkPolicy's pods":        {plugins, policy.Spec.PodSelector.MatchLabels},
		"the NetworkPolicy's port":        {port.ContainerPort, policy.Spec.Ingress[0].Ports[0].Port.IntVal},
		"who the NetworkPolicy lets in":   {set.Spec.Template.Labels, policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels},
		"the reporter's endpoint":         {"http://" + service.Name + "." + service.Namespace + ".svc:9797/readyz", endpoint},
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
	taint := readRule.Spec.Taint
	joins := "registerWithTaints: [{key: " + taint.Key + ", value: " + taint.Value + ", "
	if !strings.HasPrefix(taint.Key, "readiness.k8s.io/") || taint.Effect != corev1.TaintEffectNoSchedule ||
		!strings.Contains(read(t, "deploy/node-readiness/rule.yaml"), joins) {
		t.Errorf("the rule's taint is %+v", taint)
	}
}
