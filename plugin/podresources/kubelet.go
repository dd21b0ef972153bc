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
	// firstPause and longestPause bound the pause between attempts if the kubelet is overloaded or not listening. The
	// kubelet accepts one request every 10 ms.
	firstPause   = 10 * time.Millisecond
	longestPause = 80 * time.Millisecond
)

// errNoGet means that the kubelet does not support Get. Before Kubernetes 1.34, Get is off by default.
var errNoGet = errors.New("the kubelet does not support the Get call")

// get asks the kubelet for one pod. The error is errNoGet if the kubelet does not support Get.
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
		// The kubelet returns no code for this error: "pod x in namespace y not found".
		return find(namespace, pod)
	}
	return nil, explain(err)
}

// list asks the kubelet for all pods, and finds one of them.
func list(ctx context.Context, conn *grpc.ClientConn, namespace, pod string) (answer, error) {
	var response podresources.ListPodResourcesResponse
	err := call(ctx, conn, podresources.PodResourcesLister_List_FullMethodName,
		&podresources.ListPodResourcesRequest{}, &response)
	if err != nil {
		return nil, explain(err)
	}
	return find(namespace, pod, response.GetPodResources()...)
}

// call calls the kubelet. If the kubelet is not listening or is overloaded, call retries until the context is done.
func call(ctx context.Context, conn *grpc.ClientConn, method string, request, response proto.Message) error {
	var before error
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := conn.Invoke(ctx, method, request, response)
		switch {
		case err == nil:
			return nil
		case before != nil && ctx.Err() != nil:
			return before // more informative than the timeout
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

// temporary reports whether a retry might succeed. gRPC uses the same code for a response that is too large and for an
// overloaded server.
func temporary(err error) bool {
	s := status.Convert(err)
	return s.Code() == codes.Unavailable || s.Code() == codes.ResourceExhausted &&
		!strings.Contains(s.Message(), "larger than max")
}

// explain describes an error for the node's administrator.
func explain(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.DeadlineExceeded:
		return errors.New("the kubelet did not respond in time")
	case codes.ResourceExhausted:
		return fmt.Errorf("the kubelet refuses the request, because there are too many requests or the response "+
			"is too large: %s", s.Message())
	case codes.Unavailable:
		return fmt.Errorf("the kubelet cannot be reached: %s", localrpc.Reason(err))
	}
	return fmt.Errorf("the call to the kubelet failed: %s", s.Message())
}

// answer is the kubelet's response about one pod, by container.
type answer map[string]held

// held contains a container's resources.
type held struct {
	devices map[string][]string // the allocated device IDs, by resource
	dynamic bool                // a DRA driver allocated other resources, which have no names here
}

// answeredError means that the kubelet responded, but the response does not show the pod's resources. The text explains
// why.
type answeredError string

func (e answeredError) Error() string { return string(e) }

// find finds a pod in a response. While a pod is replacing another pod with the same name, find returns an error, since
// the response does not show which pod the caller means.
func find(namespace, name string, pods ...*podresources.PodResources) (answer, error) {
	pods = slices.DeleteFunc(pods,
		func(p *podresources.PodResources) bool { return p.GetName() != name || p.GetNamespace() != namespace })
	switch len(pods) {
	case 0:
		return nil, answeredError(fmt.Sprintf("the kubelet does not know pod %s/%s", namespace, name))
	case 1:
		return answerOf(pods[0]), nil
	}
	return nil, answeredError(fmt.Sprintf("the kubelet lists two pods named %s/%s, because one is replacing the "+
		"other: try again", namespace, name))
}

func answerOf(pod *podresources.PodResources) answer {
	a := answer{}
	for _, container := range pod.GetContainers() {
		h := a[container.GetName()]
		h.dynamic = h.dynamic || len(container.GetDynamicResources()) > 0
		for _, devices := range container.GetDevices() {
			name := devices.GetResourceName()
			ids := devices.GetDeviceIds()
			if name == "" || len(ids) == 0 { // an entry without device IDs allocates nothing
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
