// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
)

const (
	// firstPause and longestPause are between tries if the kubelet is asked too often, or does not listen: it accepts one
	// request every 10 ms.
	firstPause   = 10 * time.Millisecond
	longestPause = 80 * time.Millisecond
)

// errNoGet means that the kubelet cannot be asked for one pod: before 1.34 Get is off by default.
var errNoGet = errors.New("the kubelet has no Get")

// get asks the kubelet for one pod. The error is errNoGet where it cannot be asked.
func get(ctx context.Context, conn *grpc.ClientConn, namespace, pod string) (answer, error) {
	var response podresources.GetPodResourcesResponse
	err := call(ctx, conn, podresources.PodResourcesLister_Get_FullMethodName,
		&podresources.GetPodResourcesRequest{PodName: pod, PodNamespace: namespace}, &response)
	switch {
	case err == nil:
		return find(namespace, pod, response.GetPodResources())
	case status.Code(err) == codes.Unimplemented, strings.Contains(status.Convert(err).Message(), "Get method disabled"):
		return nil, errNoGet
	case status.Code(err) == codes.NotFound, strings.HasSuffix(status.Convert(err).Message(), "not found"):
		// Kubelets give no code: "pod x in namespace y not found".
		return find(namespace, pod)
	}
	return nil, explain(err)
}

// list asks the kubelet for all pods, and picks one.
func list(ctx context.Context, conn *grpc.ClientConn, namespace, pod string) (answer, error) {
	var response podresources.ListPodResourcesResponse
	err := call(ctx, conn, podresources.PodResourcesLister_List_FullMethodName,
		&podresources.ListPodResourcesRequest{}, &response)
	if err != nil {
		return nil, explain(err)
	}
	return find(namespace, pod, response.GetPodResources()...)
}

// call asks the kubelet. If the kubelet does not listen or is asked too often, it tries again until time is up.
func call(ctx context.Context, conn *grpc.ClientConn, method string, request, response proto.Message) error {
	var before error
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := conn.Invoke(ctx, method, request, response)
		switch {
		case err == nil:
			return nil
		case before != nil && ctx.Err() != nil:
			return before // says more than that time is up
		case !temporary(err):
			return err
		}
		before = err
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		conn.ResetConnectBackoff()
	}
}

// temporary reports whether the same question may be answered a moment later. gRPC has one code for an answer that is
// too large and for a server that is asked too often.
func temporary(err error) bool {
	s := status.Convert(err)
	return s.Code() == codes.Unavailable || s.Code() == codes.ResourceExhausted &&
		!strings.Contains(s.Message(), "larger than max")
}

// explain says what went wrong in the words of an administrator of the node.
func explain(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded:
		return errors.New("the kubelet did not respond in time")
	case codes.ResourceExhausted:
		return fmt.Errorf("the kubelet refuses: it gets too many requests, or its response is too large: "+
			"%s", s.Message())
	case codes.Unavailable:
		return fmt.Errorf("the kubelet cannot be reached: %s", localrpc.Reason(err))
	}
	return fmt.Errorf("the kubelet failed: %s", s.Message())
}

// answer is what the kubelet says about one pod, by container.
type answer map[string]held

// held are the resources that a container holds.
type held struct {
	devices map[string][]string // what is allotted of each resource, by the IDs that its device plugin has for it
	dynamic bool                // others come from a DRA driver, and have no names here
}

// answeredError says that the kubelet answered, and why that does not tell what the pod holds.
type answeredError string

func (e answeredError) Error() string { return string(e) }

// find finds a pod among those of an answer. Two pods of one name, as there can be while one takes the place of
// another, are an error: nothing says which one is meant.
func find(namespace, name string, pods ...*podresources.PodResources) (answer, error) {
	pods = slices.DeleteFunc(pods,
		func(p *podresources.PodResources) bool { return p.GetName() != name || p.GetNamespace() != namespace })
	switch len(pods) {
	case 0:
		return nil, answeredError(fmt.Sprintf("the kubelet does not know pod %s/%s", namespace, name))
	case 1:
		return answerOf(pods[0]), nil
	}
	return nil, answeredError(fmt.Sprintf("the kubelet lists two pods %s/%s, because one is replacing the other: "+
		"try again", namespace, name))
}

func answerOf(pod *podresources.PodResources) answer {
	a := answer{}
	for _, container := range pod.GetContainers() {
		h := a[container.GetName()]
		h.dynamic = h.dynamic || len(container.GetDynamicResources()) > 0
		for _, devices := range container.GetDevices() {
			name := devices.GetResourceName()
			ids := devices.GetDeviceIds()
			if name == "" || len(ids) == 0 { // an entry without device IDs allots nothing
				continue
			}
			if h.devices == nil {
				h.devices = map[string][]string{}
			}
			h.devices[name] = append(h.devices[name], ids...)
		}
		a[container.GetName()] = h
	}
	return a
}
