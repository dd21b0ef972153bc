// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// object is the Kubernetes object that a pod template belongs to.
type object struct {
	document        int
	name, namespace string   // the name is KIND/NAME
	templates       []string // the paths of its pod templates
	strays          []string // our annotations outside of them
}

// maxPath bounds a path in bytes, and with it how deep pod templates are looked for. It is far more than any kind of
// Kubernetes needs.
const maxPath = 1024

// walk looks for pod templates at and below a value that stands at a path of an object.
func (m *Manifest) walk(value any, path string, in *object) {
	if len(path) > maxPath {
		return
	}
	switch value := value.(type) {
	case []any:
		for i, element := range value {
			m.walk(element, fmt.Sprintf("%s[%d]", path, i), in)
		}
	case map[string]any:
		if kind := at[string](value, "kind"); kind != "" && at[string](value, "apiVersion") != "" {
			name := cmp.Or(at[string](value, "metadata", "name"), at[string](value, "metadata", "generateName"))
			in, path = &object{document: in.document, name: kind + "/" + name, namespace: at[string](value,
				"metadata", "namespace")}, ""
			defer m.misplaced(in)
		}
		if containers := at[[]any](value, "spec", "containers"); len(containers) > 0 &&
			at[map[string]any](containers[0]) != nil {
			in.templates = append(in.templates, path)
			m.Pods = append(m.Pods, newPod(value, path, in))
			return
		}
		for _, key := range slices.Sorted(maps.Keys(at[map[string]any](value, "metadata", "annotations"))) {
			if ours(key) {
				in.strays = append(in.strays, key+" at "+join(path, "metadata.annotations"))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			m.walk(value[key], join(path, key), in)
		}
	}
}

// at returns the value at a path of keys below a value; the zero value if it has another type.
func at[T any](value any, path ...string) (found T) {
	for _, key := range path {
		mapping, _ := value.(map[string]any)
		value = mapping[key]
	}
	found, _ = value.(T)
	return found
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

// misplaced adds the problems of annotations outside of pod templates, where they have no effect, if the object has a
// pod template.
func (m *Manifest) misplaced(o *object) {
	for _, stray := range o.strays {
		if len(o.templates) > 0 {
			m.Problems = append(m.Problems,
				fmt.Sprintf("document %d, %s: annotation %s has no effect, since only those of a pod template count: move it to %s",
					o.document, o.name, stray, join(o.templates[0], "metadata.annotations")))
		}
	}
}

const (
	forPod       = policy.AnnotationKey + "/pod"
	forContainer = policy.AnnotationKey + "/container."
	formerKey    = "rdma.nri.io"
	// maxKeyName is how many characters Kubernetes allows after the slash of an annotation's key.
	maxKeyName = 63
)

// ours reports whether an annotation's key is meant for this project, well written or not. rdma.nri.io follows NRI's
// former convention.
func ours(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == policy.AnnotationKey || domain == formerKey
}

// keyProblem returns what is wrong with the key of an annotation on a pod with containers of the given names; "" if
// nothing is, or the key is not ours.
func keyProblem(key string, containers []string) string {
	domain, name, scoped := strings.Cut(key, "/")
	container, single := strings.CutPrefix(key, forContainer)
	switch {
	case domain == formerKey:
		return "has no effect: write " + policy.AnnotationKey + strings.TrimPrefix(key, domain)
	case domain != policy.AnnotationKey || !scoped || key == forPod:
		return ""
	case len(name) > maxKeyName:
		return fmt.Sprintf("has %d characters after the slash, Kubernetes allows %d: write %s, which is for all containers "+
			"of the pod, "+
			"or give the container a name of at most %d", len(name), maxKeyName, forPod, maxKeyName-len("container."))
	case single && slices.Contains(containers, container):
		return ""
	case single:
		return fmt.Sprintf("has no effect, there is no container %s: the pod has %s", container,
			strings.Join(containers, ", "))
	case slices.Contains(containers, name):
		return "has no effect: write " + forContainer + name
	}
	return fmt.Sprintf("has no effect: write %s, %s or %sNAME", policy.AnnotationKey, forPod, forContainer)
}
