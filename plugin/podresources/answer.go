// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// answer is what the kubelet says about one pod, by container.
type answer map[string]held

// held are the resources that a container holds.
type held struct {
	names   []string // sorted
	dynamic bool     // others come from a DRA driver, and have no names here
}

// Field numbers of the API's messages. Both GetPodResourcesResponse and ListPodResourcesResponse have pods, of type PodResources,
// in field 1: a Get's answer reads like a List's with one pod.
const (
	fieldPod       protowire.Number = 1
	fieldName      protowire.Number = 1
	fieldNamespace protowire.Number = 2
)

// unknownPodError says that the kubelet answered, and does not know the pod.
type unknownPodError struct{ namespace, pod string }

func (e *unknownPodError) Error() string {
	return fmt.Sprintf("the kubelet does not know pod %s/%s", e.namespace, e.pod)
}

// errMalformed is the error for an answer that is not a message of the API.
var errMalformed = errors.New("the kubelet's answer is not in the form of the pod resources API, version 1")

// readAnswer finds a pod in the text of an answer to Get or List. Only that pod is decoded: a node can have thousands. Two pods
// of one name, as there can be while one takes the place of another, are an error: nothing says which one is meant.
func readAnswer(text []byte, namespace, pod string) (answer, error) {
	var found []byte
	for len(text) > 0 {
		field, value, rest, err := nextField(text)
		if err != nil {
			return nil, err
		}
		text = rest
		if field != fieldPod || value == nil {
			continue
		}
		name, err := bytesField(value, fieldName)
		if err != nil {
			return nil, err
		}
		in, err := bytesField(value, fieldNamespace)
		if err != nil {
			return nil, err
		}
		switch {
		case string(name) != pod || string(in) != namespace:
		case found != nil:
			return nil, fmt.Errorf("the kubelet lists two pods %s/%s, because one takes the place of the other: try again", namespace, pod)
		default:
			found = value
		}
	}
	if found == nil {
		return nil, &unknownPodError{namespace, pod}
	}
	var message podresources.PodResources
	if proto.Unmarshal(found, &message) != nil {
		return nil, errMalformed
	}
	return answerOf(&message), nil
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

// nextField cuts the first field off a message. The value is nil for fields that are not length-delimited.
func nextField(text []byte) (field protowire.Number, value, rest []byte, err error) {
	field, kind, n := protowire.ConsumeTag(text)
	if n < 0 {
		return 0, nil, nil, errMalformed
	}
	text = text[n:]
	if kind != protowire.BytesType {
		n := protowire.ConsumeFieldValue(field, kind, text)
		if n < 0 {
			return 0, nil, nil, errMalformed
		}
		return field, nil, text[n:], nil
	}
	value, n = protowire.ConsumeBytes(text)
	if n < 0 {
		return 0, nil, nil, errMalformed
	}
	return field, value, text[n:], nil
}

// bytesField returns what stands in a message's field; the last one counts, as for every reader of protobuf.
func bytesField(message []byte, field protowire.Number) (found []byte, err error) {
	for len(message) > 0 {
		f, value, rest, err := nextField(message)
		if err != nil {
			return nil, err
		}
		if f == field && value != nil {
			found = value
		}
		message = rest
	}
	return found, nil
}
