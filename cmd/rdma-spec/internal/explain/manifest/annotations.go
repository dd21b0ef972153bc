// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

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
