// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/rdma-spec/rdma-spec/test/node/cluster"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// testOperatorsDevicePlugin: the API server adds the init container once, as the last one, to the device plugin of an
// operator, and to no other pod.
func testOperatorsDevicePlugin(t *testing.T, c *cluster.Cluster) {
	const namespace, ours = "nvidia-network-operator", "wait-for-nri-rdma"
	policy := deployPath("device-plugins/network-operator/mutating-admission-policy.yaml")
	kubectl(t, c, "create", "namespace", namespace)
	kubectl(t, c, "apply", "-f", policy)
	try := func(namespace, app string, init ...corev1.Container) []string {
		pod := podOf(nil, ctr{limits: "cpu"})
		pod.Namespace, pod.Labels, pod.Spec.InitContainers = namespace, map[string]string{"app": app}, init
		file := filepath.Join(scratch.Dir(t), "pod.json")
		scratch.File(t, file, golden.JSON(t, pod), 0o644)
		var got corev1.Pod
		if err := json.Unmarshal([]byte(kubectl(t, c, "create", "--dry-run=server", "-o", "json", "-f", file)), &got); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range got.Spec.InitContainers {
			names = append(names, c.Name)
			if c.Name == ours && len(init) == 0 && (len(c.VolumeMounts) != 1 || c.VolumeMounts[0].MountPath != "/run/rdma-spec" ||
				!slices.Equal(c.Command, []string{"/usr/local/bin/rdma-spec", "wait"}) ||
				!slices.ContainsFunc(got.Spec.Volumes, func(v corev1.Volume) bool {
					return v.Name == c.VolumeMounts[0].Name && v.HostPath != nil && v.HostPath.Path == "/run/rdma-spec"
				})) {
				t.Errorf("the init container is %+v, with volumes %+v", c, got.Spec.Volumes)
			}
		}
		return names
	}
	first := corev1.Container{Name: "ofed-driver-validation", Image: "x"}
	by := corev1.Container{Name: ours, Image: "x"} // an administrator's own
	awaitThat(t, c, clusterPatience, "adds the init container",
		func() bool { return slices.Equal(try(namespace, "rdma-shared-dp"), []string{ours}) })
	for _, test := range []struct {
		namespace, app string
		init           []corev1.Container
		want           []string
	}{
		{namespace, "sriovdp", []corev1.Container{first}, []string{first.Name, ours}},
		{namespace, "rdma-shared-dp", []corev1.Container{first}, []string{first.Name, ours}},
		{namespace, "sriov-device-plugin", nil, []string{ours}},
		{namespace, "sriovdp", []corev1.Container{by}, []string{ours}},
		{namespace, "other", nil, nil},
		{corev1.NamespaceDefault, "rdma-shared-dp", nil, nil},
	} {
		if got := try(test.namespace, test.app, test.init...); !slices.Equal(got, test.want) {
			t.Errorf("%+v: init containers %q", test, got)
		}
	}
	kubectl(t, c, "delete", "-f", policy)
	kubectl(t, c, "delete", "namespace", namespace, "--wait=false")
}
