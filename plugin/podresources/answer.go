// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"fmt"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// answer is what the kubelet says about one pod, by container.
type answer map[string]held

// held are the resources that a container holds.
type held struct {
	names   []string // sorted
	dynamic bool     // others come from a DRA driver, and have no names here
}

// unknownPodError says that the kubelet answered, and does not know the pod.
type unknownPodError struct{ namespace, pod string }

func (e *unknownPodError) Error() string {
	return fmt.Sprintf("the kubelet does not know pod %s/%s", e.namespace, e.pod)
}

// find finds a pod among those of an answer. Two pods of one name, as there can be while one takes the place of
// another, are an error: nothing says which one is meant.
func find(namespace, name string, pods ...*podresources.PodResources) (answer, error) {
	pods = slices.DeleteFunc(pods,
		func(p *podresources.PodResources) bool { return p.GetName() != name || p.GetNamespace() != namespace })
	switch len(pods) {
	case 0:
		return nil, &unknownPodError{namespace, name}
	case 1:
		return answerOf(pods[0]), nil
	}
	return nil, fmt.Errorf("the kubelet lists two pods %s/%s, because one takes the place of the other: try again",
		namespace, name)
}

func answerOf(pod *podresources.PodResources) answer {
	a := answer{}
	for _, container := range pod.GetContainers() {
		h := a[container.GetName()]
		h.dynamic = h.dynamic || len(container.GetDynamicResources()) > 0
		for _, devices := range container.GetDevices() {
			// An entry without device IDs allots nothing.
			if name := devices.GetResourceName(); name != "" && len(devices.GetDeviceIds()) > 0 {
				h.names = append(h.names, name)
			}
		}
		slices.Sort(h.names)
		h.names = slices.Compact(h.names)
		a[container.GetName()] = h
	}
	return a
}
