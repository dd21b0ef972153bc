// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/plugin"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

const admissionFile = "admission/mutating-admission-policy.yaml"

// decodeAdmission reads the admission policy. A field that Kubernetes does not know is an error. What its expressions do is tested on
// a real API server.
func decodeAdmission(t *testing.T) (p admissionv1.MutatingAdmissionPolicy, b admissionv1.MutatingAdmissionPolicyBinding) {
	t.Helper()
	documents := strings.Split(read(t, admissionFile), "\n---\n")
	if len(documents) != 2 {
		t.Fatalf("%d objects, want the policy and its binding", len(documents))
	}
	for i, into := range []any{&p, &b} {
		if err := yaml.UnmarshalStrict([]byte(documents[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	return p, b
}

func TestAdmissionHoldsTogether(t *testing.T) {
	p, b := decodeAdmission(t)
	version := admissionv1.SchemeGroupVersion.String()
	want := []string{version, "MutatingAdmissionPolicy", version, "MutatingAdmissionPolicyBinding", p.Name}
	if diff := cmp.Diff(want, []string{p.APIVersion, p.Kind, b.APIVersion, b.Kind, b.Spec.PolicyName}); diff != "" {
		t.Errorf("versions, kinds and the policy's name, -want +got:\n%s", diff)
	}
	create := []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}}
	if diff := cmp.Diff(create, p.Spec.MatchConstraints.ResourceRules); diff != "" {
		t.Errorf("what the policy is asked about, -want +got:\n%s", diff)
	}
}

// TestAdmissionList: the list is one that the plugin's configuration would take as optIn.resources.
func TestAdmissionList(t *testing.T) {
	p, _ := decodeAdmission(t)
	for _, v := range p.Spec.Variables {
		if v.Name != "resources" {
			continue
		}
		config := policy.Default()
		if err := yaml.UnmarshalStrict([]byte(v.Expression), &config.OptIn.Resources); err != nil {
			t.Fatal(err)
		}
		if len(config.OptIn.Resources) == 0 {
			t.Error("the list is empty")
		}
		if _, err := policy.New(config); err != nil {
			t.Error(err)
		}
		return
	}
	t.Error("the policy has no list of resources")
}

// TestAdmissionNames: the policy's expressions call the annotations and the plugin as the plugin, NRI and the runtime do.
func TestAdmissionNames(t *testing.T) {
	p, _ := decodeAdmission(t)
	var all strings.Builder
	for _, v := range p.Spec.Variables {
		all.WriteString(v.Expression)
	}
	for _, c := range p.Spec.MatchConditions {
		all.WriteString(c.Expression)
	}
	for _, m := range p.Spec.Mutations {
		all.WriteString(m.JSONPatch.Expression)
	}
	names := map[string]int{}
	for _, name := range regexp.MustCompile(`"([a-z-]+\.noderesource\.dev[^"]*)"`).FindAllStringSubmatch(all.String(), -1) {
		names[name[1]]++
	}
	for name := range names {
		key, scope, scoped := strings.Cut(name, "/")
		if key != policy.AnnotationKey && key != plugin.RequiredPluginsAnnotation || scoped && scope != "pod" && scope != "container." {
			t.Errorf("nobody reads the annotation %s", name)
		}
	}
	if len(names) != 6 {
		t.Errorf("annotations %v, want three scopes of two", names)
	}

	help, err := newPrograms(t).help("nri-rdma", nil)
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`--name NAME .* without it ([a-z-]+),`).FindStringSubmatch(help)
	if name == nil {
		t.Fatalf("no default of --name in:\n%s", help)
	}
	for _, want := range []string{`'["` + name[1] + `"]'`, `'["` + name[1] + `", '`, `"- ` + name[1] + `\n"`} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the policy writes no %s", want)
		}
	}
}
