// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// optedIn is a pod that the policies of these tests adjust.
const optedIn = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml, annotations: {rdma.noderesource.dev: " +
	"\"true\"}}, spec: {containers: [{name: main}]}}"

// sixteenNode is a node whose only RDMA container has the 16Gi that its policy gives, and the flags to look at it.
func sixteenNode(t *testing.T) (root string, node []string) {
	t.Helper()
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "17179869184 17179869184", plain)
	root = files.Root(t)
	return root, serve(t, root, critest.Options{}, holder(1, 0, "train-0", memlockOf(16<<30)))
}

// Without a policy in force and without --config, nothing is judged by the defaults, which give more than any policy.
func TestNothingIsJudgedByTheDefaults(t *testing.T) {
	_, node := sixteenNode(t)
	for _, args := range []string{"status", "repair --dry-run", "repair"} {
		if got := words(args, node...); got.Status != 3 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 1 ||
			!strings.Contains(got.Stderr, "or name a configuration with --config") {
			t.Errorf("%s: %+v, want 3 and one line", args, got)
		}
	}
}

// register has a plugin on the node at a root write its policy, and gives what ends the plugin.
func register(t *testing.T, root, text, source string) (end func()) {
	t.Helper()
	p, err := policy.FromText([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w := &inforce.Writer{Root: root}
	if err := errors.Join(os.Mkdir(filepath.Join(root, "run"), 0o755), w.Write(p, source)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close) // what nobody refers to is collected, and its lock goes with it
	return w.Close
}

// explain decides by the policy in force on the node, and says so; for another node, and with --config, it does not.
func TestExplainByThePolicyInForce(t *testing.T) {
	root, _ := sixteenNode(t)
	end := register(t, root, "{memlock: 16Gi, optIn: {namespaces: [ml]}}", "/etc/nri-rdma/config.yaml")
	const inForce = "/run/rdma-spec/policy.yaml, in force, from /etc/nri-rdma/config.yaml"
	got := call(optedIn, "explain", "-f", "-", "--root", root)
	if got.Status != 0 || !strings.Contains(got.Stdout, inForce) || !strings.Contains(got.Stdout, "16Gi") {
		t.Errorf("%+v", got)
	}
	if got := call(optedIn, "explain", "-f", "-", "--root", root, "--hca", "mlx5_0"); strings.Contains(got.Stdout, inForce) {
		t.Errorf("for another node: %+v", got)
	}
	end()
	if got := call(optedIn, "explain", "-f", "-", "--root", root); strings.Contains(got.Stdout, inForce) {
		t.Errorf("after the plugin has ended: %+v", got)
	}
}

// status and repair judge by the policy in force and name it, and refuse one whose writer has ended.
func TestPolicyInForce(t *testing.T) {
	root, node := sixteenNode(t)
	end := register(t, root, "memlock: 16Gi", "/etc/rdma-spec/config.yaml")
	socket := node[len(node)-1]
	names := "rdma-spec: policy: " + root + "/run/rdma-spec/policy.yaml, in force, from /etc/rdma-spec/config.yaml\n" +
		"rdma-spec: runtime: containerd v2.4.2 at " + socket + "\n"
	if got := words("status", node...); got.Status != 0 || !strings.Contains(got.Stdout, "16Gi") ||
		!strings.HasPrefix(got.Stderr, names) {
		t.Errorf("status: %+v, want %q", got, names)
	}
	want := outcome{0, "nothing to raise: looked at 1 RDMA container\n", names}
	if diff := cmp.Diff(want, words("repair --dry-run", node...)); diff != "" {
		t.Errorf("repair (-want +got):\n%s", diff)
	}
	for _, args := range []string{"status -o json", "repair --dry-run -o json"} {
		got := words(args, node...)
		var result struct {
			Policy   struct{ File, Source string }
			Runtimes []struct{ Name, Socket string }
		}
		if err := json.Unmarshal([]byte(got.Stdout), &result); err != nil || got.Status != 0 || got.Stderr != "" ||
			result.Policy.File != root+inforce.File || result.Policy.Source != "/etc/rdma-spec/config.yaml" ||
			len(result.Runtimes) != 1 || result.Runtimes[0].Socket != socket {
			t.Errorf("%s: %v, %+v", args, err, got)
		}
	}
	end()
	for _, args := range []string{"status", "repair --dry-run"} {
		if got := words(args, node...); got.Status != 3 || !strings.Contains(got.Stderr,
			"is out of date: the plugin that wrote it has ended: name a configuration with --config\n") {
			t.Errorf("%s: %+v", args, got)
		}
		if got := words(args, by(t, "memlock: 1Gi", node)...); got.Status != 0 {
			t.Errorf("%s --config: %+v", args, got)
		}
	}
}

// says returns what a check of the doctor says of objects that are as they should be.
func says(t *testing.T, check string, args ...string) (found []string) {
	t.Helper()
	stdout := words("doctor -o json --only "+check, args...).Stdout
	var got doctor.Diagnosis
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	for _, f := range got.Findings {
		if f.Status == doctor.OK && f.Object != "" {
			found = append(found, f.Object+": "+f.Text)
		}
	}
	return found
}

// Only containerd stores a spec that repair can edit: on CRI-O, no command names repair for a low spec.
func TestAllCommandsNameOneRemedy(t *testing.T) {
	for name, want := range map[string]string{"containerd": "rdma-spec repair --as-called ml/train-0",
		"cri-o": "recreate the pod"} {
		files := hcatest.V100Node().Files()
		addProcess(files, 1, "unlimited unlimited", ipcLocked)
		node := by(t, "{}", serve(t, files.Root(t), critest.Options{Name: name}, holder(1, 0, "train-0", memlockOf(65536))))
		asCalled := strings.NewReplacer(strings.Join(node, " "), "--as-called")
		problem := "spec gives processes of an exec 64Ki, the policy gives unlimited: " + want
		said := asCalled.Replace(strings.Join(says(t, "container-memlock", node...), "\n"))
		if said != "container ml/train-0 main: Its "+problem+"." {
			t.Errorf("%s: doctor: %s", name, said)
		}
		if got := words("status", node...); got.Status != 1 || !strings.Contains(asCalled.Replace(got.Stdout),
			"below  its "+problem+"\n") {
			t.Errorf("%s: status: %+v", name, got)
		}
		got := words("repair --dry-run", node...)
		raised := strings.Contains(got.Stdout, "would be raised")
		left := strings.Contains(got.Stderr, "rdma-spec: ml/train-0 main: left alone: its "+problem+"\n")
		if got.Status != 1 || raised != (name == "containerd") || left == raised {
			t.Errorf("%s: repair --dry-run: %+v", name, got)
		}
	}
}

// A configuration that cannot be read is an error that the doctor reports, on a node and on a copy of one.
func TestDoctorReportsWhyThePolicyCannotBeRead(t *testing.T) {
	root, node := sixteenNode(t)
	for name, node := range map[string][]string{"node": node, "copy": {"--root", collected(t, root, node[2:]...)}} {
		got := words("doctor --only container-refused --config /nonexistent.yaml", node...)
		if !strings.Contains(got.Stdout, "cannot read the configuration: stat /nonexistent.yaml: no such file or directory") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Whatever policy a node had when it was copied, the copy is judged by the one that is named.
func TestACopyIsJudgedByAnotherPolicy(t *testing.T) {
	root, node := sixteenNode(t)
	register(t, root, "{memlock: 16Gi, optIn: {namespaces: [ml]}}", "/etc/rdma-spec/config.yaml")
	pod := configFile(t, optedIn)
	copied := []string{"--root", collected(t, root, node[2:]...)}
	for _, test := range []struct {
		args         string
		kept, judged string // what its output has, by the policy that was in force and by the newer one
		problems     int
	}{
		{"status", " ok ", "memlock is 16Gi, the policy gives 32Gi", 1},
		{"repair --dry-run", "nothing to raise: looked at 1 RDMA container\n",
			"ml/train-0 main: memlock would be raised to 32Gi", 1},
		{"doctor --only container-memlock", "1 ok", "Memlock is 16Gi, the policy gives 32Gi", 0},
		{"explain -f " + pod, "16Gi", "32Gi", 0},
	} {
		if got := words(test.args, copied...); got.Status != 0 || !strings.Contains(got.Stdout+got.Stderr, test.kept) {
			t.Errorf("%s by the policy in force: %+v, want %q", test.args, got, test.kept)
		}
		got := words(test.args, by(t, "{memlock: 32Gi, optIn: {namespaces: [ml]}}", copied)...)
		if got.Status != test.problems || !strings.Contains(got.Stdout+got.Stderr, test.judged) {
			t.Errorf("%s --config: %+v, want %d and %q", test.args, got, test.problems, test.judged)
		}
	}
}
