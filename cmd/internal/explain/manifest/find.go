// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// object is the Kubernetes object to which pods belong.
type object struct {
	document        int
	name, namespace string   // the name is KIND/NAME
	builtin         bool     // Kubernetes itself reads the object, not a third-party controller
	strays          []string // annotations of rdma-spec outside pods
}

// place is the position of a value in an object.
type place struct {
	*object
	path   string
	around map[string]any // the mapping that contains the value
	limits map[string]any // resource limits above the value, for containers without limits, as in Dynamo
}

// maxPath is the maximum length of a path in bytes, which limits the depth of the search for pods. No kind of object
// needs more.
const maxPath = 1024

// overrides matches paths of values that change another object's pods. For example, a TrainJob changes the pods of its
// runtime.
var overrides = regexp.MustCompile(`(?i)override|patch`)

// walk searches a value for pods.
func (m *Manifest) walk(value any, p place) {
	if len(p.path) > maxPath {
		return
	}
	for i, element := range valueAt[[]any](value) {
		name := cmp.Or(valueAt[string](element, "name"), valueAt[string](element, "groupName"), strconv.Itoa(i))
		m.walk(element, place{p.object, p.path + "[" + name + "]", p.around, p.limits})
	}
	if strings.Contains(valueAt[string](value), " containers:\n") {
		m.unexplained(p, "the value is a string that contains a manifest with containers")
	}
	all := valueAt[map[string]any](value)
	kind := valueAt[string](all, "kind")
	version := valueAt[string](all, "apiVersion")
	if kind != "" && version != "" {
		name := cmp.Or(valueAt[string](all, "metadata", "name"), valueAt[string](all, "metadata", "generateName"))
		p = place{object: &object{document: p.document, name: kind + "/" + name, namespace: valueAt[string](all, "metadata",
			"namespace"), builtin: !strings.Contains(version, ".")}}
		defer m.misplaced(p, len(m.Pods))
	}
	for _, key := range slices.Sorted(maps.Keys(valueAt[map[string]any](all, "annotations"))) {
		ofPod := hasContainers(p.around) || hasContainers(valueAt[map[string]any](p.around, "spec"))
		if isOurs(key) && (!ofPod || !strings.HasSuffix(p.path, "metadata")) {
			p.strays = append(p.strays, key+" at "+join(p.path, "annotations"))
		}
	}
	limits := quantities(valueAt[any](all, "resources", "limits"))
	pod := hasContainers(all)
	if len(limits) == 0 {
		limits = quantities(valueAt[any](all, "resourcesPerNode", "limits")) // for a TrainJob
	}
	switch {
	case pod && overrides.MatchString(p.path):
		m.unexplained(p, "the value changes pods that other manifests define")
	case pod:
		m.add(all, p)
	case len(limits) > 0:
		p.limits = limits
	case len(quantities(all["limits"])) > 0:
		m.unexplained(p, "the value has resource limits, but no container")
	}
	found := len(m.Pods) + len(m.Unexplained)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		read := pod && slices.Contains(containerKeys, key) || (pod || len(limits) > 0) && strings.HasPrefix(key, "resources")
		if !read && key != "status" {
			m.walk(all[key], place{p.object, join(p.path, key), all, p.limits})
		}
	}
	if len(limits) > 0 && !pod && found == len(m.Pods)+len(m.Unexplained) { // such as KServe's model
		name := cmp.Or(valueAt[string](all, "name"), p.path[strings.LastIndexByte(p.path, '.')+1:])
		m.add(map[string]any{"containers": []any{map[string]any{"name": name, "securityContext": all["securityContext"]}}}, p)
	}
}

// containerKeys are the keys of a pod's containers in Kubernetes, Argo Workflows, and Dynamo.
var containerKeys = slices.Concat(
	[]string{"containers", "initContainers", "ephemeralContainers", "sidecars"}, aloneKeys)

// aloneKeys are the keys of single containers outside lists.
var aloneKeys = []string{"container", "script", "mainContainer"}

func hasContainers(value map[string]any) bool {
	return slices.ContainsFunc(containerKeys, func(key string) bool {
		list := valueAt[[]any](value, key)
		return len(list) > 0 && valueAt[map[string]any](list[0]) != nil || valueAt[string](value, key, "image") != ""
	})
}

// quantities returns resource limits, including Dynamo's nested limits. If the value is not resource limits, the result
// is empty.
func quantities(limits any) map[string]any {
	all := map[string]any{}
	for key, amount := range valueAt[map[string]any](limits) {
		if _, err := resource.ParseQuantity(fmt.Sprint(amount)); err == nil {
			all[key] = amount
		} else if nested := quantities(amount); len(nested) > 0 {
			maps.Copy(all, nested)
		} else {
			return nil
		}
	}
	return all
}

// valueAt returns the value at a path of keys in a value; the zero value if the type differs.
func valueAt[T any](value any, path ...string) (found T) {
	for _, key := range path {
		mapping, _ := value.(map[string]any)
		value = mapping[key]
	}
	found, _ = value.(T)
	return found
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

func (m *Manifest) unexplained(p place, why string) {
	m.Unexplained = append(m.Unexplained, fmt.Sprintf("document %d, %s: %s: run explain on the object's pods instead "+
		"(kubectl get pod -o yaml)", p.document, strings.TrimSuffix(p.name+" "+p.path, " "), why))
}

// misplaced reports annotations outside pods if the object has pods. The object's pods begin at index first. The effect
// of such annotations on third-party controllers is unknown.
func (m *Manifest) misplaced(p place, first int) {
	for _, stray := range p.strays {
		switch {
		case first == len(m.Pods):
		case p.builtin:
			m.Problems = append(m.Problems,
				fmt.Sprintf("document %d, %s: annotation %s has no effect outside a pod template: move the annotation to %s",
					p.document, p.name, stray, join(m.Pods[first].Path, "metadata.annotations")))
		default:
			m.unexplained(p, "annotation "+stray+" has an effect only if the controller copies it to the pods")
		}
	}
}

const (
	forPod       = policy.AnnotationKey + "/pod"
	forContainer = policy.AnnotationKey + "/container."
	formerKey    = "rdma.nri.io"
	// maxName is the maximum number of characters that Kubernetes allows after the slash of an annotation's key.
	maxName = 63
)

// isOurs reports whether an annotation's key is intended for rdma-spec, even if the key is invalid. rdma.nri.io follows
// NRI's former convention.
func isOurs(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == policy.AnnotationKey || domain == formerKey
}

// keyProblem returns the problem with the key of an annotation on a pod with containers of the given names. It returns
// "" if the key is valid, or not intended for rdma-spec.
func keyProblem(key string, containers []string) string {
	domain, name, scoped := strings.Cut(key, "/")
	container, single := strings.CutPrefix(key, forContainer)
	exists := single && slices.Contains(containers, container)
	switch {
	case domain == formerKey:
		return "has no effect: write " + policy.AnnotationKey + strings.TrimPrefix(key, domain)
	case domain != policy.AnnotationKey || !scoped || key == forPod || exists && len(name) <= maxName:
		return ""
	case len(name) > maxName:
		return fmt.Sprintf("has %d characters after the slash, but Kubernetes allows only %d: write %s, which applies to "+
			"all containers in the pod, or shorten the container's name to %d characters", len(name), maxName, forPod,
			maxName-len("container."))
	case single:
		return fmt.Sprintf("has no effect: the pod has no container %s, only %s", container,
			strings.Join(containers, ", "))
	case slices.Contains(containers, name):
		return "has no effect: write " + forContainer + name
	}
	return fmt.Sprintf("has no effect: write %s, %s, or %sNAME", policy.AnnotationKey, forPod, forContainer)
}
