// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/deviceplugin"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// asDevicePlugin, in the environment, makes this test program a device plugin that offers an HCA as that resource.
const asDevicePlugin = "RDMA_SPEC_TEST_DEVICE_PLUGIN"

// offer is what the program does then, as the process of a pod.
func offer(resource string) int {
	if _, err := deviceplugin.Start(context.Background(), deviceplugin.Shared(resource, 0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// Names of upstream's DaemonSet.
const (
	devicePluginNamespace = "kube-system"
	devicePluginName      = "rdma-shared-dp-ds"
)

// waitingDevicePlugin returns a folder with that of deploy/device-plugins, and with a stand-in for what it takes from GitHub.
func waitingDevicePlugin(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{ // of the node, by their places in the pod
		"/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
		"/dev":                            "/dev",
		"/run/programs":                   filepath.Dir(program),
	}
	pod := corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
		Name: "k8s-rdma-shared-dp-ds", Image: node.ImageName("busybox"), ImagePullPolicy: corev1.PullNever,
		Command: []string{filepath.Join("/run/programs", filepath.Base(program))},
		Env:     []corev1.EnvVar{{Name: asDevicePlugin, Value: shared}},
	}}}
	mounts := &pod.Containers[0].VolumeMounts
	for place, host := range folders {
		name := filepath.Base(place)
		*mounts = append(*mounts, corev1.VolumeMount{Name: name, MountPath: place})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}})
	}
	labels := map[string]string{"name": devicePluginName}
	set, err := json.Marshal(&appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: devicePluginName, Namespace: devicePluginNamespace},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}},
	})
	if err != nil {
		t.Fatal(err)
	}
	folder := scratch.Folder(t)
	if err := os.CopyFS(folder, os.DirFS(deployPath("device-plugins"))); err != nil {
		t.Fatal(err)
	}
	// The rest of the kustomization is as people apply it, but for the image's name, which no registry has here.
	kept := strings.Replace(deployFile(t, "device-plugins/k8s-rdma-shared-dev-plugin/kustomization.yaml"),
		"registry.example.com/", "docker.io/library/", 1)
	own := filepath.Join(folder, "own")
	files := fstest.MapFS{
		"kustomization.yaml":          {Data: []byte(kept)},
		"config.json":                 {Data: []byte("{}")},
		"upstream/kustomization.yaml": {Data: []byte("resources: [daemonset.yaml, configmap.yaml]\n")},
		"upstream/daemonset.yaml":     {Data: set},
		"upstream/configmap.yaml": {Data: []byte(
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: rdma-devices, namespace: kube-system}}`)},
	}
	if err := os.CopyFS(own, files); err != nil {
		t.Fatal(err)
	}
	return own
}
