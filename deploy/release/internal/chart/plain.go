// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// plainValues are those of the plain manifests: an image of one's own.
var plainValues = Values{"image": Values{"repository": "rdma-spec", "tag": "devel"}}

// whole are plain files that are templates with other values: what comes before a file's first line with the marker stays.
var whole = []struct {
	file, marker string
	templates    []string
	values       Values
}{
	{"daemonset.yaml", "apiVersion: v1\nkind: ServiceAccount\n", []string{"serviceaccount", "configmap", "networkpolicy", "daemonset"}, Values{}},
	{"admission/mutating-admission-policy.yaml", "apiVersion: ", []string{"admission-require"}, Values{"admission": Values{"require": on}}},
	{"admission/validating-admission-policy.yaml", "apiVersion: ", []string{"admission-forbid"}, Values{"admission": Values{"forbid": on}}},
}

// patches are plain files that make of daemonset.yaml what the chart makes with other values.
var patches = []struct {
	file   string
	values Values
}{
	{"daemonset-crio.yaml", Values{"runtime": "crio"}},
	{"daemonset-repair.yaml", Values{"privileges": "repair"}},
	{"daemonset-validator.yaml", Values{"validator": on}},
}

// copies are plain files that the chart has as well.
var copies = map[string]string{"prometheus/alerts.yaml": "files/alerts.yaml", "grafana/dashboard.json": "files/dashboard.json"}

var on = Values{"enabled": true}

// Plain returns the texts of the plain manifests, by their paths below deploy.
func Plain(root string) (map[string]string, error) {
	c, err := Load(root)
	if err != nil {
		return nil, err
	}
	render := func(values Values) (map[string]string, error) {
		values = maps.Clone(values)
		maps.Copy(values, plainValues)
		return Render(c, values)
	}
	texts := map[string]string{}
	for _, w := range whole {
		rendered, err := render(w.values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.file, err)
		}
		var objects []string
		for _, template := range w.templates {
			objects = append(objects, rendered[template+".yaml"])
		}
		if texts[w.file], err = withHead(root, w.file, w.marker, strings.Join(objects, "---\n")); err != nil {
			return nil, err
		}
	}
	base, err := render(Values{})
	if err != nil {
		return nil, err
	}
	for _, p := range patches {
		rendered, err := render(p.values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.file, err)
		}
		patch, err := difference(base["daemonset.yaml"], rendered["daemonset.yaml"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.file, err)
		}
		if texts[p.file], err = withHead(root, p.file, "spec:", patch); err != nil {
			return nil, err
		}
	}
	for file, from := range copies {
		text, err := os.ReadFile(filepath.Join(root, Folder, from))
		if err != nil {
			return nil, err
		}
		texts[file] = string(text)
	}
	return texts, nil
}

// DaemonSets returns daemonset.yaml and its patches with another image, by their names.
func DaemonSets(root, image string) (map[string]string, error) {
	texts, err := Plain(root)
	if err != nil {
		return nil, err
	}
	const own = "image: rdma-spec:devel\n"
	if strings.Count(texts["daemonset.yaml"], own) != 1 {
		return nil, fmt.Errorf("daemonset.yaml does not have %q once", own)
	}
	maps.DeleteFunc(texts, func(name, _ string) bool { return !strings.HasPrefix(name, "daemonset") })
	for name, text := range texts {
		texts[name] = strings.ReplaceAll(text, own, "image: "+image+"\n")
	}
	return texts, nil
}

// withHead puts what a plain file has before a marker, the comments for its readers, before a text.
func withHead(root, file, marker, text string) (string, error) {
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

// difference returns the strategic merge patch that makes one DaemonSet of another. The order of list elements does not matter.
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
	var tree any
	if err := json.Unmarshal(patch, &tree); err != nil {
		return "", err
	}
	text, err := yaml.Marshal(withoutOrder(tree))
	return string(text), err
}

// withoutOrder removes the directives that say in which order the elements of lists are, and puts what is deleted first.
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
