// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/plugin"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

const (
	requireFile = "deploy/admission/mutating-admission-policy.yaml"
	forbidFile  = "deploy/admission/validating-admission-policy.yaml"
	quotaFile   = "deploy/admission/resource-quota.yaml"
)

func TestMain(m *testing.M) { repository.Main(m) }

// decodeAdmission reads the objects of a file. A field that Kubernetes does not know is an error. What the policies'
// expressions do is tested on a real API server.
func decodeAdmission(t *testing.T, file string, into ...any) {
	t.Helper()
	documents := strings.Split(repository.Read(t, file), "\n---\n")
	if len(documents) != len(into) {
		t.Fatalf("%s has %d objects, want %d", file, len(documents), len(into))
	}
	for i, document := range documents {
		if err := yaml.UnmarshalStrict([]byte(document), into[i]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

func decodeRequire(t *testing.T) (p admissionv1.MutatingAdmissionPolicy, b admissionv1.MutatingAdmissionPolicyBinding) {
	t.Helper()
	decodeAdmission(t, requireFile, &p, &b)
	return p, b
}

func decodeForbid(t *testing.T) (p admissionv1.ValidatingAdmissionPolicy,
	b admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	decodeAdmission(t, forbidFile, &p, &b)
	return p, b
}

func TestAdmissionHoldsTogether(t *testing.T) {
	p, b := decodeRequire(t)
	version := admissionv1.SchemeGroupVersion.String()
	want := []string{version, "MutatingAdmissionPolicy", version, "MutatingAdmissionPolicyBinding", p.Name, "Fail"}
	got := []string{p.APIVersion, p.Kind, b.APIVersion, b.Kind, b.Spec.PolicyName, string(*p.Spec.FailurePolicy)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, -want +got:\n%s", requireFile, diff)
	}
	create := []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}}
	if diff := cmp.Diff(create, p.Spec.MatchConstraints.ResourceRules); diff != "" {
		t.Errorf("what the policy is asked about, -want +got:\n%s", diff)
	}
}

// TestForbidHoldsTogether: an error refuses, and a refusal names the label that the binding reads.
func TestForbidHoldsTogether(t *testing.T) {
	p, b := decodeForbid(t)
	version := admissionv1.SchemeGroupVersion.String()
	want := []string{version, "ValidatingAdmissionPolicy", version, "ValidatingAdmissionPolicyBinding", p.Name, "Fail"}
	got := []string{p.APIVersion, p.Kind, b.APIVersion, b.Kind, b.Spec.PolicyName, string(*p.Spec.FailurePolicy)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, -want +got:\n%s", forbidFile, diff)
	}
	if diff := cmp.Diff([]admissionv1.ValidationAction{admissionv1.Deny}, b.Spec.ValidationActions); diff != "" {
		t.Errorf("actions, -want +got:\n%s", diff)
	}
	unlabelled := b.Spec.MatchResources.NamespaceSelector.MatchExpressions
	if len(unlabelled) != 1 || len(unlabelled[0].Values) != 1 || len(p.Spec.Validations) != 1 {
		t.Fatalf("%d validations where namespaces match %v, want one of each", len(p.Spec.Validations), unlabelled)
	}
	label := unlabelled[0].Key + "=" + unlabelled[0].Values[0]
	for _, text := range []string{p.Spec.Validations[0].MessageExpression, p.Spec.Validations[0].Message,
		repository.Read(t, forbidFile)} {
		if !strings.Contains(text, label) {
			t.Errorf("the label %s is not in:\n%s", label, text)
		}
	}
}

// admissionList returns a policy's list of resources, which the plugin's configuration would take as optIn.resources.
func admissionList(t *testing.T, variables []admissionv1.Variable) []string {
	t.Helper()
	for _, v := range variables {
		if v.Name != "resources" {
			continue
		}
		config := policy.Default()
		if err := yaml.UnmarshalStrict([]byte(v.Expression), &config.OptIn.Resources); err != nil {
			t.Fatal(err)
		}
		if len(config.OptIn.Resources) == 0 {
			t.Fatal("the list is empty")
		}
		if _, err := policy.New(config); err != nil {
			t.Fatal(err)
		}
		return config.OptIn.Resources
	}
	t.Fatal("the policy has no list of resources")
	return nil
}

// TestAdmissionLists: what makes a pod insist on the plugin is forbidden, and so is what a quota counts.
func TestAdmissionLists(t *testing.T) {
	require, _ := decodeRequire(t)
	forbid, _ := decodeForbid(t)
	forbidden := admissionList(t, forbid.Spec.Variables)
	if diff := cmp.Diff(admissionList(t, require.Spec.Variables), forbidden); diff != "" {
		t.Errorf("%s, %s, -want +got:\n%s", requireFile, forbidFile, diff)
	}

	var quota corev1.ResourceQuota
	decodeAdmission(t, quotaFile, &quota)
	if quota.Kind != "ResourceQuota" || len(quota.Spec.Hard) == 0 {
		t.Errorf("%s is a %s of %d resources", quotaFile, quota.Kind, len(quota.Spec.Hard))
	}
	for name, amount := range quota.Spec.Hard {
		resource, requested := strings.CutPrefix(string(name), "requests.")
		matches := slices.ContainsFunc(forbidden, func(glob string) bool {
			matched, err := path.Match(glob, resource)
			return matched && err == nil
		})
		if requested != matches || !requested && !strings.HasSuffix(resource, ".deviceclass.resource.k8s.io/devices") ||
			!amount.IsZero() {
			t.Errorf("%s: %s gives %v: it is not in the list of %s, or not none", quotaFile, name, amount.String(), forbidFile)
		}
	}
}

// variable returns a policy's variable that is a list of words.
func variable(t *testing.T, file string, variables []admissionv1.Variable, name string) (words []string) {
	t.Helper()
	i := slices.IndexFunc(variables, func(v admissionv1.Variable) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("%s has no variable %s", file, name)
	}
	if err := yaml.UnmarshalStrict([]byte(variables[i].Expression), &words); err != nil {
		t.Fatal(err)
	}
	return words
}

// TestAdmissionOptOut: both policies know the values of the annotation that opt out.
func TestAdmissionOptOut(t *testing.T) {
	require, _ := decodeRequire(t)
	forbid, _ := decodeForbid(t)
	for file, variables := range map[string][]admissionv1.Variable{requireFile: require.Spec.Variables, forbidFile: forbid.Spec.Variables} {
		got := variable(t, file, variables, "optOut")
		if diff := cmp.Diff(policy.AnnotationVocabulary().OptOut, got); diff != "" {
			t.Errorf("%s: write the plugin's words into the variable optOut of its template in deploy/helm/nri-rdma/templates, and "+
				"`make update`, -want +got:\n%s", file, diff)
		}
	}
}

// TestAdmissionRows: each word of the annotation is tested on a real API server, which evaluates the policies' expressions.
func TestAdmissionRows(t *testing.T) {
	const file = "test/e2e/admission_pods_test.go"
	for _, word := range policy.AnnotationVocabulary().Words() {
		if !strings.Contains(repository.Read(t, file), "annotated{asks: "+strconv.Quote(word)+"}") {
			t.Errorf("%s: add a row to admissions for a pod with the annotation %q, and what the policy adds to it", file, word)
		}
	}
}

// TestForbidDevices: the policy looks for the annotations of other plugins that the configuration lists by default.
func TestForbidDevices(t *testing.T) {
	p, _ := decodeForbid(t)
	keys := variable(t, forbidFile, p.Spec.Variables, "deviceAnnotations")
	if diff := cmp.Diff(policy.Default().OptIn.DeviceAnnotations, keys); diff != "" {
		t.Errorf("annotations, -want +got:\n%s", diff)
	}
}

// TestForbidNames: the policy looks for the annotation that the plugin reads, and for those of others.
func TestForbidNames(t *testing.T) {
	p, _ := decodeForbid(t)
	var names []string
	for _, v := range p.Spec.Variables {
		names = append(names, regexp.MustCompile(`[a-z.-]*noderesource\.dev[^"]*`).FindAllString(v.Expression, -1)...)
	}
	want := []string{"devices.noderesource.dev", "cdi-devices.noderesource.dev", policy.AnnotationKey + "/"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("annotations that the policy looks for, -want +got:\n%s", diff)
	}
}

// TestAdmissionNames: the policy's expressions call the annotations and the plugin as the plugin, NRI and the runtime
// do.
func TestAdmissionNames(t *testing.T) {
	p, _ := decodeRequire(t)
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
	for _, name := range regexp.MustCompile(`"([a-z-]+\.noderesource\.dev[^"]*)"`).FindAllStringSubmatch(all.String(),
		-1) {
		names[name[1]]++
	}
	for name := range names {
		key, scope, scoped := strings.Cut(name, "/")
		if key != policy.AnnotationKey && key != plugin.RequiredPluginsAnnotation || scoped &&
			scope != "pod" && scope != "container." {
			t.Errorf("nobody reads the annotation %s", name)
		}
	}
	if len(names) != 6 {
		t.Errorf("annotations %v, want three scopes of two", names)
	}

	help, err := repository.Build(t).Help("nri-rdma", nil)
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`--name NAME .* the default is ([a-z-]+),`).FindStringSubmatch(help)
	if name == nil {
		t.Fatalf("no default of --name in:\n%s", help)
	}
	for _, want := range []string{`'["` + name[1] + `"]'`, `'["` + name[1] + `", '`, `"- ` + name[1] + `\n"`} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the policy writes no %s", want)
		}
	}
}
