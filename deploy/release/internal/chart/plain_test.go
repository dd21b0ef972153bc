// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart/v2"
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
	"repair":    {"privileges": "repair"},
	"validator": {"validator": on},
}

var on = Values{"enabled": true}

// plain returns the texts of the plain manifests, by their paths below deploy.
func plain(c *chart.Chart) (map[string]string, error) {
	texts := map[string]string{}
	for _, w := range whole {
		rendered, err := renderPlain(c, w.values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.file, err)
		}
		var objects []string
		for _, template := range w.templates {
			objects = append(objects, rendered[template+".yaml"])
		}
		if texts[w.file], err = withHead(w.file, w.marker, strings.Join(objects, "---\n")); err != nil {
			return nil, err
		}
	}
	base, err := renderPlain(c, Values{})
	if err != nil {
		return nil, err
	}
	for name, values := range components {
		file := "kustomize/components/" + name + "/daemonset.yaml"
		rendered, err := renderPlain(c, values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		patch, err := difference(base["daemonset.yaml"], rendered["daemonset.yaml"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if texts[file], err = withHead(file, "apiVersion:", patch); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// helms are labels that say what Helm has installed.
var helms = regexp.MustCompile(`(?m)^ +(helm.sh/chart|app.kubernetes.io/(managed-by|version)): .*\n`)

// renderPlain renders the chart with values, for the image of the plain manifests, and without what is for Helm alone.
func renderPlain(c *chart.Chart, values Values) (map[string]string, error) {
	values = maps.Clone(values)
	maps.Copy(values, plainValues)
	rendered, err := Render(c, release, values)
	delete(rendered, testPod)
	for file, text := range rendered {
		rendered[file] = helms.ReplaceAllString(text, "")
	}
	return rendered, err
}

// withHead puts what a plain file has before a marker, the comments for its readers, before a text.
func withHead(file, marker, text string) (string, error) {
	old, err := os.ReadFile(filepath.Join(root, "deploy", file))
	if err != nil {
		return "", err
	}
	head, _, found := strings.Cut(string(old), "\n"+marker)
	if !found {
		return "", fmt.Errorf("%s has no line %q", file, marker)
	}
	return head + "\n" + text, nil
}

// difference returns the strategic merge patch that makes one DaemonSet of another, with the names that kustomize finds
// the DaemonSet by. The order of list elements does not matter.
func difference(from, to string) (string, error) {
	var texts [2][]byte
	for i, text := range []string{from, to} {
		var err error
		if texts[i], err = yaml.YAMLToJSON([]byte(text)); err != nil {
			return "", err
		}
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(texts[0], texts[1], appsv1.DaemonSet{})
	if err != nil {
		return "", err
	}
	var tree Values
	if err := json.Unmarshal(patch, &tree); err != nil {
		return "", err
	}
	var object struct {
		Metadata struct{ Name, Namespace string }
	}
	if err := yaml.Unmarshal([]byte(to), &object); err != nil {
		return "", err
	}
	tree["apiVersion"], tree["kind"] = "apps/v1", "DaemonSet"
	tree["metadata"] = Values{"name": object.Metadata.Name, "namespace": object.Metadata.Namespace}
	text, err := yaml.Marshal(withoutOrder(tree))
	return string(text), err
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
