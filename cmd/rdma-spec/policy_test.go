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

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// sixteenNode is a node whose only RDMA container has the 16Gi that its policy gives.
func sixteenNode(t *testing.T) (root, socket string) {
	t.Helper()
	files := hcatest.V100Node().Files()
	addProcess(files, 1, "17179869184 17179869184", plain)
	root = files.Root(t)
	runtime := critest.Serve(t, critest.Options{}, holder(1, 0, "train-0", memlockOf(16<<30)))
	return root, runtime.Socket
}

// Without a policy in force and without --config, nothing is judged by the defaults, which give more than any policy.
func TestNothingIsJudgedByTheDefaults(t *testing.T) {
	root, socket := sixteenNode(t)
	for _, args := range []string{"status", "repair --dry-run", "repair"} {
		stdout, stderr, status := runCommand(t, append(strings.Fields(args), "--root", root, "--runtime-endpoint", socket)...)
		if status != 3 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr,
			"or name a configuration with --config") {
			t.Errorf("%s: exit status %d, stdout %q, stderr %q; want 3 and one line", args, status, stdout, stderr)
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
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml, annotations: {rdma.noderesource.dev: " +
		"\"true\"}}, spec: {containers: [{name: main}]}}"
	const inForce = "/run/rdma-spec/policy.yaml, in force, from /etc/nri-rdma/config.yaml"
	got := call(pod, "explain", "-f", "-", "--root", root)
	if got.Status != 0 || !strings.Contains(got.Stdout, inForce) || !strings.Contains(got.Stdout, "16Gi") {
		t.Errorf("%+v", got)
	}
	if got := call(pod, "explain", "-f", "-", "--root", root, "--hca", "mlx5_0"); strings.Contains(got.Stdout, inForce) {
		t.Errorf("for another node: %+v", got)
	}
	end()
	if got := call(pod, "explain", "-f", "-", "--root", root); strings.Contains(got.Stdout, inForce) {
		t.Errorf("after the plugin has ended: %+v", got)
	}
}

// status and repair judge by the policy in force and name it, and refuse one whose writer has ended.
func TestPolicyInForce(t *testing.T) {
	root, socket := sixteenNode(t)
	end := register(t, root, "memlock: 16Gi", "/etc/rdma-spec/config.yaml")
	node := []string{"--root", root, "--runtime-endpoint", socket}
	stdout, stderr, status := runCommand(t, append([]string{"status"}, node...)...)
	names := "rdma-spec: policy: " + root + "/run/rdma-spec/policy.yaml, in force, from /etc/rdma-spec/config.yaml\n" +
		"rdma-spec: runtime: containerd v2.4.2 at " + socket + "\n"
	if status != 0 || !strings.Contains(stdout, "16Gi") || !strings.HasPrefix(stderr, names) {
		t.Errorf("status: exit status %d, stderr %q, want %q\n%s", status, stderr, names, stdout)
	}
	stdout, stderr, status = runCommand(t, append([]string{"repair", "--dry-run"}, node...)...)
	if status != 0 || stdout != "nothing to raise: looked at 1 RDMA container\n" || stderr != names {
		t.Errorf("repair: exit status %d, stdout %q, stderr %q, want %q", status, stdout, stderr, names)
	}
	for _, args := range []string{"status -o json", "repair --dry-run -o json"} {
		stdout, stderr, status = runCommand(t, append(strings.Fields(args), node...)...)
		var result struct {
			Policy   struct{ File, Source string }
			Runtimes []struct{ Name, Socket string }
		}
		if err := json.Unmarshal([]byte(stdout), &result); err != nil || status != 0 || stderr != "" {
			t.Fatalf("%s: exit status %d, %v, stderr %q\n%s", args, status, err, stderr, stdout)
		}
		if result.Policy.File != root+inforce.File || result.Policy.Source != "/etc/rdma-spec/config.yaml" ||
			len(result.Runtimes) != 1 || result.Runtimes[0].Socket != socket {
			t.Errorf("%s: %+v", args, result)
		}
	}
	end()
	for _, args := range []string{"status", "repair --dry-run"} {
		_, stderr, status = runCommand(t, append(strings.Fields(args), node...)...)
		if status != 3 || !strings.Contains(stderr,
			"is out of date: the plugin that wrote it has ended: name a configuration with --config\n") {
			t.Errorf("%s: exit status %d, %s", args, status, stderr)
		}
		stdout, _, status = runCommand(t, append(append(strings.Fields(args), "--config",
			configFile(t, "memlock: 1Gi")), node...)...)
		if status != 0 {
			t.Errorf("%s --config: exit status %d, %s", args, status, stdout)
		}
	}
}
