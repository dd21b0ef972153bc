// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The validator's service differs from the plugin's in what it is called and how it is started, and is hardened alike.
func TestValidatorServiceIsAsThePlugins(t *testing.T) {
	settings := func(file string) []string {
		var lines []string
		for line := range strings.Lines(read(t, file)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "Description=") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	want := settings("systemd/nri-rdma.service")
	start := slices.Index(want, "ExecStart=/usr/local/bin/nri-rdma")
	if start < 0 {
		t.Fatal("the plugin's service is started in another way")
	}
	want[start] += " --validate"
	// A validator writes nothing.
	want = slices.DeleteFunc(want, func(line string) bool { return strings.HasPrefix(line, "RuntimeDirectory") })
	if diff := cmp.Diff(want, settings("systemd/nri-rdma-validator.service")); diff != "" {
		t.Errorf("-as the plugin's +as it is:\n%s", diff)
	}
	folder := t.TempDir()
	program, unit := filepath.Join(folder, "nri-rdma"), filepath.Join(folder, "nri-rdma-validator.service")
	write(t, program, "#!/bin/sh\n", 0o755)
	write(t, unit, strings.ReplaceAll(read(t, "systemd/nri-rdma-validator.service"), "/usr/local/bin/nri-rdma", program), 0o644)
	if out := systemdAnalyze(t, "verify", "--man=false", unit); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
}

// The patch adds one container that is as the plugin's, less what a validator does not need.
func TestValidatorPatch(t *testing.T) {
	var patch appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(read(t, "daemonset-validator.yaml")), &patch); err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff(want, patch.Spec.Template.Spec.Containers[0]); diff != "" {
		t.Errorf("the container, -as the plugin's +as it is:\n%s", diff)
	}
	var rest appsv1.DaemonSet
	if diff := cmp.Diff(rest, patch, cmpopts.IgnoreFields(corev1.PodSpec{}, "Containers")); diff != "" {
		t.Errorf("the patch changes more:\n%s", diff)
	}
}
