// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// object is the Kubernetes object that a pod template belongs to.
type object struct {
	path       string // in the document; "" but for a List's items
	kind, name string
	namespace  string
}

// finder finds the pod templates of one document.
type finder struct {
	document int
	pods     []Pod
	strays   []stray
}

// stray is one of our annotations outside of a pod template.
type stray struct {
	object
	path, key string
}

// walk looks for pod templates at and below a field.
func (f *finder) walk(at field, in object) {
	switch value := at.value.(type) {
	case []any:
		for _, element := range at.list() {
			f.walk(element, in)
		}
	case map[string]any:
		if isObject(value) {
			meta := at.get("metadata")
			in = object{path: at.path, kind: at.get("kind").text(), name: meta.get("name").text(), namespace: meta.get("namespace").text()}
			if in.name == "" {
				in.name = meta.get("generateName").text()
			}
		}
		if isPodTemplate(value) {
			f.pods = append(f.pods, f.pod(at, in))
			return
		}
		f.noteStrays(at, in)
		for _, key := range at.keys() {
			f.walk(at.get(key), in)
		}
	}
}

func isObject(mapping map[string]any) bool {
	_, kind := mapping["kind"].(string)
	_, version := mapping["apiVersion"].(string)
	return kind && version
}

func isPodTemplate(mapping map[string]any) bool {
	spec, ok := mapping["spec"].(map[string]any)
	if !ok {
		return false
	}
	containers, ok := spec["containers"].([]any)
	if !ok || len(containers) == 0 {
		return false
	}
	for _, c := range containers {
		if _, ok := c.(map[string]any); !ok {
			return false
		}
	}
	return true
}

// noteStrays keeps our annotations in the metadata of something that is no pod template.
func (f *finder) noteStrays(at field, in object) {
	meta, ok := at.value.(map[string]any)["metadata"].(map[string]any)
	if !ok {
		return
	}
	annotations, ok := meta["annotations"].(map[string]any)
	if !ok {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if ours(key) {
			f.strays = append(f.strays, stray{in, f.within(at, in), key})
		}
	}
}

// within gives a field's path in its object.
func (f *finder) within(at field, in object) string {
	return strings.TrimPrefix(strings.TrimPrefix(at.path, in.path), ".")
}

// misplaced gives the problems of annotations that stand where nobody reads them, in objects that have a pod template.
func (f *finder) misplaced() []string {
	var problems []string
	for _, s := range f.strays {
		for _, pod := range f.pods {
			if pod.object == s.object {
				problems = append(problems, fmt.Sprintf("document %d, %s/%s: annotation %s at %s has no effect, only those of the pod template have: move it to %s",
					f.document, s.kind, s.name, s.key, join(s.path, "metadata.annotations"), join(pod.Path, "metadata.annotations")))
				break
			}
		}
	}
	return problems
}
