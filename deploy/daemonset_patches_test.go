// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDaemonSetRepairPatch checks that the patch changes the DaemonSet's own container, and adds only one capability and the PID namespace.
func TestDaemonSetRepairPatch(t *testing.T) {
	var patch appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(read(t, "daemonset-repair.yaml")), &patch); err != nil {
		t.Fatal(err)
	}
	var want appsv1.DaemonSet
	want.Spec.Template.Spec = corev1.PodSpec{
		HostPID: true,
		Containers: []corev1.Container{{
			Name:            decode(t).daemonSet.Spec.Template.Spec.Containers[0].Name,
			SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_RESOURCE"}}},
		}},
	}
	if diff := cmp.Diff(want, patch); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestDaemonSetCRIOPatch: the patch takes away what the DaemonSet has of containerd, and mounts CRI-O's folder instead. TestClusterDaemonSet
// has an API server apply it.
func TestDaemonSetCRIOPatch(t *testing.T) {
	ctr := decode(t).daemonSet.Spec.Template.Spec.Containers[0]
	at := slices.IndexFunc(ctr.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "containerd" })
	if at < 0 {
		t.Fatal("the DaemonSet does not mount containerd's folder")
	}
	type object = map[string]any
	want := object{
		"containers": []any{object{"name": ctr.Name, "volumeMounts": []any{
			object{"mountPath": ctr.VolumeMounts[at].MountPath, "$patch": "delete"},
			object{"name": "crio", "mountPath": "/host/run/crio", "readOnly": true},
		}}},
		"volumes": []any{
			object{"name": "containerd", "$patch": "delete"},
			object{"name": "crio", "hostPath": object{"path": "/run/crio", "type": "Directory"}},
		},
	}
	var got object
	if err := yaml.Unmarshal([]byte(read(t, "daemonset-crio.yaml")), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(object{"spec": object{"template": object{"spec": want}}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
