// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// baseFile is the plain manifest that the components are for.
const baseFile = "kustomize/base/daemonset.yaml"

// plainValues are those of the plain manifests: an image of one's own, and a namespace of Prometheus to edit.
var plainValues = Values{"image": Values{"repository": "rdma-spec", "tag": "devel"},
	"networkPolicy": Values{"namespaces": []any{"monitoring"}}}

// whole are plain files that are templates with other values: what comes before a file's first line with the marker
// stays.
var whole = []struct {
	file, marker string
	templates    []string
	values       Values
}{
	{baseFile, "apiVersion: v1\nkind: ServiceAccount\n", []string{"serviceaccount", "networkpolicy",
		"daemonset"}, Values{}},
	{"admission/mutating-admission-policy.yaml", "apiVersion: ", []string{"admission-require"},
		Values{"admission": Values{"require": on}}},
	{"admission/validating-admission-policy.yaml", "apiVersion: ", []string{"admission-forbid"},
		Values{"admission": Values{"forbid": on}}},
}

// components are the parts of deploy/kustomize that make of its base what the chart makes with other values.
var components = map[string]Values{
	"crio":      {"runtime": "crio"},
	"repair":    {"repair": on},
	"validator": {"validator": on},
}

var on = Values{"enabled": true}

// plain returns the texts of the plain manifests, by their paths below deploy.
func plain(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, w := range whole {
		rendered := renderPlain(t, w.values)
		var objects []string
		for _, template := range w.templates {
			objects = append(objects, rendered[template+".yaml"])
		}
		texts[w.file] = withHead(t, w.file, w.marker, strings.Join(objects, "---\n"))
	}
	base := renderPlain(t, Values{})["daemonset.yaml"]
	for name, values := range components {
		file := "kustomize/components/" + name + "/daemonset.yaml"
		texts[file] = withHead(t, file, "apiVersion:", difference(t, base, renderPlain(t, values)["daemonset.yaml"]))
	}
	return texts
}

// helms are labels that say what Helm has installed.
var helms = regexp.MustCompile(`(?m)^ +(helm.sh/chart|app.kubernetes.io/(managed-by|version)): .*\n`)

// renderPlain renders the chart with values, for the image of the plain manifests, and without what is for Helm alone.
func renderPlain(t *testing.T, values Values) map[string]string {
	t.Helper()
	values = maps.Clone(values)
	maps.Copy(values, plainValues)
	rendered, err := Render(load(t), release, values)
	if err != nil {
		t.Fatal(err)
	}
	delete(rendered, testPod)
	for file, text := range rendered {
		rendered[file] = helms.ReplaceAllString(text, "")
	}
	return rendered
}

// withHead puts what a plain file has before a marker, the comments for its readers, before a text.
func withHead(t *testing.T, file, marker, text string) string {
	t.Helper()
	head, _, found := strings.Cut(read(t, "deploy/"+file), "\n"+marker)
	if !found {
		t.Fatalf("%s has no line %q", file, marker)
	}
	return head + "\n" + text
}

// difference returns the strategic merge patch that makes one DaemonSet of another, with the names that kustomize finds
// the DaemonSet by. The order of list elements does not matter.
func difference(t *testing.T, from, to string) string {
	t.Helper()
	var texts [2][]byte
	for i, text := range []string{from, to} {
		var err error
		if texts[i], err = yaml.YAMLToJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(texts[0], texts[1], appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var tree Values
	if err := json.Unmarshal(patch, &tree); err != nil {
		t.Fatal(err)
	}
	named := parse(t, to)["metadata"].(Values)
	tree["apiVersion"], tree["kind"] = "apps/v1", "DaemonSet"
	tree["metadata"] = Values{"name": named["name"], "namespace": named["namespace"]}
	text, err := yaml.Marshal(withoutOrder(tree))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// withoutOrder removes the directives that say in which order the elements of lists are, and puts what is deleted
// first.
func withoutOrder(tree any) any {
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			if strings.HasPrefix(key, "$setElementOrder/") {
				delete(tree, key)
				continue
			}
			tree[key] = withoutOrder(value)
		}
	case []any:
		for i, element := range tree {
			tree[i] = withoutOrder(element)
		}
		slices.SortStableFunc(tree, func(a, b any) int { return rank(a) - rank(b) })
	}
	return tree
}

func rank(element any) int {
	if object, ok := element.(map[string]any); ok && object["$patch"] == "delete" {
		return 0
	}
	return 1
}
