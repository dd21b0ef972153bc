// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestRestricted: the values of docs/restricted.md leave the plugin no socket but NRI's and no capability, forbid RDMA
// in namespaces without the label, and have the policy of the example.
func TestRestricted(t *testing.T) {
	text := read(t, "deploy/helm/nri-rdma/restricted.yaml")
	rendered := render(t, text)
	lintStrictly(t, "restricted", parse(t, text))
	checkFields(t, Objects(rendered))
	var got, want map[string]any
	for text, into := range map[string]*map[string]any{policyOf(t, rendered): &got, read(t, "deploy/examples/config-restricted.yaml"): &want} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the policy of the values is not that of the example, -want +got:\n%s", diff)
	}
	base := daemonSet(t, render(t, "{}")).Spec.Template.Spec
	set := daemonSet(t, rendered).Spec.Template.Spec
	names := func(spec corev1.PodSpec) (all []string) {
		for _, v := range spec.Volumes {
			all = append(all, v.Name)
		}
		return all
	}
	without := slices.DeleteFunc(names(base), func(name string) bool { return name == "containerd" })
	if diff := cmp.Diff(without, names(set)); diff != "" {
		t.Errorf("the volumes are not those of the default without the runtime's socket, -want +got:\n%s", diff)
	}
	var containers []string
	for _, c := range set.Containers {
		containers = append(containers, c.Name)
		if given := c.SecurityContext.Capabilities; len(given.Add) > 0 || !slices.Contains(given.Drop, "ALL") {
			t.Errorf("container %s has the capabilities %v", c.Name, given)
		}
	}
	if diff := cmp.Diff([]string{"nri-rdma", "validator"}, containers); diff != "" {
		t.Errorf("containers, -want +got:\n%s", diff)
	}
	if rendered["admission-forbid.yaml"] == "" {
		t.Errorf("RDMA is not forbidden anywhere")
	}
}
