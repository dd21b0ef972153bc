// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/kubelet"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// TestClusterRequest compares the fields that containerd fills for a kubelet's container with those of the benchmark's
// recorded request. If RDMA_RECORD names a file, the test records the request in it: see make recorded-request.
func TestClusterRequest(t *testing.T) {
	c := startCluster(t)
	k := join(t, c)
	r := recorder{make(chan *api.CreateContainerRequest, 1)}
	plugin, err := stub.New(r, stub.WithPluginName("recorder"), stub.WithPluginIdx("95"),
		stub.WithSocketPath(containerd.NRISocket))
	must.Succeed(t, err)
	must.Succeed(t, plugin.Start(t.Context()))
	t.Cleanup(plugin.Stop)
	createPod(t, c, k, usualPod(k.NodeName()))
	got := await.Receive(t, kubeletPatience, "containerd asks about the container", r.asked)
	if file := os.Getenv("RDMA_RECORD"); file != "" {
		text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(got)
		must.Succeed(t, err)
		must.Succeed(t, os.WriteFile(file, append(text, '\n'), 0o644))
		return
	}
	want := &api.CreateContainerRequest{}
	text := deployFile(t, "../test/bench/testdata/kubelet-container.json")
	must.Succeed(t, protojson.Unmarshal([]byte(text), want))
	if diff := cmp.Diff(filled(want), filled(got)); diff != "" {
		t.Errorf("make recorded-request: the fields that containerd fills (-recorded +now):\n%s", diff)
	}
}

// usualPod returns a pod with a typical number of variables, labels, and mounts, in addition to those from the kubelet
// and containerd.
func usualPod(node string) *corev1.Pod {
	pod := kubelet.Pod{Name: "web-6f7c9d5b8-x2x7k", Containers: []kubelet.Container{{Name: "main"}}}.Manifest()
	pod.Spec.NodeName = node
	pod.Labels = map[string]string{"app": "web", "pod-template-hash": "6f7c9d5b8", "version": "v42"}
	pod.Annotations = map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}
	main := &pod.Spec.Containers[0]
	for i := range 24 {
		main.Env = append(main.Env, corev1.EnvVar{Name: fmt.Sprintf("WEB_SETTING_%d", i), Value: "a value that is usual"})
	}
	for _, at := range []string{"/var/run/secrets/kubernetes.io/serviceaccount", "/etc/web", "/cache", "/data"} {
		name := "volume-" + filepath.Base(at)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at})
	}
	return pod
}

// recorder is a plugin that passes the first request about a container to the test.
type recorder struct {
	asked chan *api.CreateContainerRequest
}

func (r recorder) CreateContainer(_ context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	select {
	case r.asked <- &api.CreateContainerRequest{Pod: pod, Container: ctr}:
	default:
	}
	return nil, nil, nil
}

// filled returns the paths of the fields that are set in a message.
func filled(message proto.Message) []string {
	paths := map[string]bool{}
	addFilled(paths, "", message.ProtoReflect())
	var sorted []string
	for path := range paths {
		sorted = append(sorted, path)
	}
	slices.Sort(sorted)
	return sorted
}

func addFilled(paths map[string]bool, at string, message protoreflect.Message) {
	message.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		path := at + string(f.Name())
		paths[path] = true
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range value.List().Len() {
				addFilled(paths, path+".", value.List().Get(i).Message())
			}
		default:
			addFilled(paths, path+".", value.Message())
		}
		return true
	})
}
