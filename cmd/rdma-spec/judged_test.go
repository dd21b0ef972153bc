// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// says returns what a check of the doctor says of objects that are as they should be.
func says(t *testing.T, check string, args ...string) (found []string) {
	t.Helper()
	stdout, stderr, _ := runCommand(t, append([]string{"doctor", "-o", "json", "--only", check}, args...)...)
	var got doctor.Diagnosis
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	for _, f := range got.Findings {
		if f.Status == doctor.OK && f.Object != "" {
			found = append(found, f.Object+": "+f.Text)
		}
	}
	return found
}

// No runtime but containerd stores a spec that repair can edit. So where only the spec of a container is low, repair
// does nothing on CRI-O, and no command names it.
func TestAllCommandsNameOneRemedy(t *testing.T) {
	for name, want := range map[string]string{"containerd": "rdma-spec repair --as-called ml/train-0",
		"cri-o": "recreate the pod"} {
		files := hcatest.V100Node().Files()
		addProcess(files, 1, "unlimited unlimited", ipcLocked)
		root, file := files.Root(t), configFile(t, "{}")
		runtime := critest.Serve(t, critest.Options{Name: name}, holder(1, 0, "train-0", memlockOf(65536)))
		node := []string{"--config", file, "--root", root, "--runtime-endpoint", runtime.Socket}
		asCalled := strings.NewReplacer(strings.Join(node, " "), "--as-called")
		said := says(t, "container-memlock", node...)
		for i := range said {
			said[i] = asCalled.Replace(said[i])
		}
		note := "container ml/train-0 main: Its spec gives processes of an exec 64Ki, the policy gives unlimited: " + want + "."
		if diff := cmp.Diff([]string{note}, said); diff != "" {
			t.Errorf("%s: doctor (-want +got):\n%s", name, diff)
		}
		stdout, stderr, _ := runCommand(t, append([]string{"status"}, node...)...)
		if !strings.Contains(asCalled.Replace(stdout), "the policy gives unlimited: "+want+"\n") {
			t.Errorf("%s: status:\n%s%s", name, stdout, stderr)
		}
		stdout, stderr, status := runCommand(t, append([]string{"repair", "--dry-run"}, node...)...)
		if raised := strings.Contains(stdout, "would be raised"); status != 1 ||
			raised != strings.HasPrefix(want, "rdma-spec repair") {
			t.Errorf("%s: repair --dry-run: exit status %d\n%s%s", name, status, stdout, stderr)
		}
	}
}

// A configuration that cannot be read is an error that the doctor reports, on a node and on a copy of one.
func TestDoctorReportsWhyThePolicyCannotBeRead(t *testing.T) {
	root, socket := sixteenNode(t)
	archive := collected(t, root, "--runtime-endpoint", socket)
	for name, node := range map[string][]string{"node": {"--root", root, "--runtime-endpoint", socket},
		"copy": {"--root", archive}} {
		stdout, _, status := runCommand(t, append([]string{"doctor", "--only", "container-refused", "--config",
			"/nonexistent.yaml"}, node...)...)
		if !strings.Contains(stdout, "cannot read the configuration: stat /nonexistent.yaml: no such file or directory") {
			t.Errorf("%s: exit status %d\n%s", name, status, stdout)
		}
	}
}

// Whatever policy a node had when it was copied, the copy is judged by the one that is named.
func TestACopyIsJudgedByAnotherPolicy(t *testing.T) {
	root, socket := sixteenNode(t)
	register(t, root, "{memlock: 16Gi, optIn: {namespaces: [ml]}}", "/etc/rdma-spec/config.yaml")
	pod := filepath.Join(scratch.Folder(t), "pod.yaml")
	const manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml, annotations: " +
		"{rdma.noderesource.dev: \"true\"}}, " +
		"spec: {containers: [{name: main}]}}"
	scratch.File(t, pod, manifest, 0o600)
	archive := collected(t, root, "--runtime-endpoint", socket)
	newer := configFile(t, "{memlock: 32Gi, optIn: {namespaces: [ml]}}")
	for _, test := range []struct {
		args           string
		kept, judged   string // what its output has, by the policy that was in force and by the newer one
		well, problems int
	}{
		{"status", " ok ", "memlock is 16Gi, the policy gives 32Gi", 0, 1},
		{"repair --dry-run", "nothing to raise: looked at 1 RDMA container\n",
			"ml/train-0 main: memlock would be raised to 32Gi", 0, 1},
		{"doctor --only container-memlock", "1 ok", "Memlock is 16Gi, the policy gives 32Gi", 0, 0},
		{"explain -f " + pod, "16Gi", "32Gi", 0, 0},
	} {
		args := append(strings.Fields(test.args), "--root", archive)
		stdout, stderr, status := runCommand(t, args...)
		if status != test.well || !strings.Contains(stdout+stderr, test.kept) {
			t.Errorf("%s by the policy in force: exit status %d, want %d and %q\n%s%s", test.args, status, test.well,
				test.kept, stdout, stderr)
		}
		stdout, stderr, status = runCommand(t, append(args, "--config", newer)...)
		if status != test.problems || !strings.Contains(stdout+stderr, test.judged) {
			t.Errorf("%s --config: exit status %d, want %d and %q\n%s%s", test.args, status, test.problems,
				test.judged, stdout, stderr)
		}
	}
	if _, stderr, status := runCommand(t, "repair", "--root", archive); status != 3 || !strings.Contains(stderr,
		"this is a copy of a node") {
		t.Errorf("repair of a copy: exit status %d, %s", status, stderr)
	}
}
