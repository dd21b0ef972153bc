// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package kustomize_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// component returns the patch of a component, which has the names of the base's DaemonSet.
func component(t *testing.T, name string) (patch appsv1.DaemonSet) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(repository.Read(t, "deploy/kustomize/components/"+name+"/daemonset.yaml")),
		&patch); err != nil {
		t.Fatal(err)
	}
	return patch
}

// unchanged returns a patch that names the base's DaemonSet and changes nothing.
func unchanged(t *testing.T) (patch appsv1.DaemonSet) {
	t.Helper()
	base := decode(t).daemonSet
	patch.TypeMeta, patch.Name, patch.Namespace = base.TypeMeta, base.Name, base.Namespace
	return patch
}

// TestRepairComponent checks that the patch adds one container, with one capability, the node, and its PID namespace, and
// changes nothing of the plugin's.
func TestRepairComponent(t *testing.T) {
	patch := component(t, "repair")
	pod := patch.Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.Containers[0].Name != "repair" || !pod.HostPID {
		t.Fatalf("containers %+v; hostPID %t", pod.Containers, pod.HostPID)
	}
	want := &corev1.Capabilities{Add: []corev1.Capability{"SYS_RESOURCE"}, Drop: []corev1.Capability{"ALL"}}
	if diff := cmp.Diff(want, pod.Containers[0].SecurityContext.Capabilities); diff != "" {
		t.Errorf("capabilities, -want +got:\n%s", diff)
	}
	rest := cmpopts.IgnoreFields(corev1.PodSpec{}, "Containers", "HostPID", "Volumes")
	if diff := cmp.Diff(unchanged(t), patch, rest); diff != "" {
		t.Errorf("the patch changes more:\n%s", diff)
	}
}

// The patch adds one container that is as the plugin's, less what a validator does not need.
func TestValidatorComponent(t *testing.T) {
	patch := component(t, "validator")
	if n := len(patch.Spec.Template.Spec.Containers); n != 1 {
		t.Fatalf("%d containers, want 1", n)
	}
	want := *decode(t).daemonSet.Spec.Template.Spec.Containers[0].DeepCopy()
	port := want.Ports[0].ContainerPort
	want.Name = "validator"
	want.Args = append([]string{"--validate"}, want.Args...)
	for i, arg := range want.Args {
		if arg == "--http=:9797" {
			want.Args[i] = "--http=:9798"
		}
	}
	want.Ports = []corev1.ContainerPort{{Name: "validator", ContainerPort: port + 1}}
	want.ReadinessProbe.HTTPGet.Port.StrVal, want.LivenessProbe.HTTPGet.Port.StrVal = "validator", "validator"
	want.VolumeMounts = slices.DeleteFunc(want.VolumeMounts, func(m corev1.VolumeMount) bool {
		return slices.Contains([]string{"proc", "containerd", "policy"}, m.Name)
	})
	for i := range want.VolumeMounts {
		if m := &want.VolumeMounts[i]; m.Name == "kept" { // it reads what the plugin writes
			m.ReadOnly = true
		}
	}
	byName := cmpopts.SortSlices(func(a, b corev1.VolumeMount) bool { return a.Name < b.Name })
	if diff := cmp.Diff(want, patch.Spec.Template.Spec.Containers[0], byName); diff != "" {
		t.Errorf("the container, -as the plugin's +as it is:\n%s", diff)
	}
	if diff := cmp.Diff(unchanged(t), patch, cmpopts.IgnoreFields(corev1.PodSpec{}, "Containers")); diff != "" {
		t.Errorf("the patch changes more:\n%s", diff)
	}
}
