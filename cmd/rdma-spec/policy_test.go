// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/internal/clitest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri/critest"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/nodetest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// optedIn is a pod that the policies of these tests adjust.
const optedIn = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml, annotations: {rdma.noderesource.dev: " +
	"\"true\"}}, spec: {containers: [{name: main}]}}"

// sixteenNode is a node whose only RDMA container has the 16Gi that its policy gives, and the flags to look at it.
func sixteenNode(t *testing.T) (root string, node []string) {
	t.Helper()
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "17179869184 17179869184", nodetest.Plain)
	root = files.Root(t)
	return root, nodetest.Serve(t, root, nodetest.Holder(1, 0, "train-0", nodetest.Memlock(16<<30)))
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

// explain decides by the policy in force on the node, and says so; for another node, and where no plugin runs, by the
// node's configuration.
func TestExplain_policyOfNode(t *testing.T) {
	root, _ := sixteenNode(t)
	config := filepath.Join(root, "etc/rdma-spec/config.yaml")
	scratch.File(t, config, "{}", 0o644)
	const inForce = "/run/rdma-spec/policy.yaml, in force, from /etc/nri-rdma/config.yaml"
	end := register(t, root, "{memlock: 16Gi, optIn: {namespaces: [ml]}}", "/etc/nri-rdma/config.yaml")
	explained := func(args ...string) clitest.Outcome {
		return program.Call(optedIn, append([]string{"explain", "-f", "-", "--root", root}, args...)...)
	}
	if got := explained(); got.Status != 0 || !strings.Contains(got.Stdout, inForce) || !strings.Contains(got.Stdout, "16Gi") {
		t.Errorf("%+v", got)
	}
	if got := explained("--hca", "mlx5_0"); strings.Contains(got.Stdout, inForce) {
		t.Errorf("for another node: %+v", got)
	}
	end()
	if got := explained("-o", "json"); !strings.Contains(got.Stdout, fmt.Sprintf(`"configuration": %q`, config)) {
		t.Errorf("after the plugin has ended: %+v", got)
	}
	scratch.File(t, filepath.Join(root, inforce.File), "nonsense", 0o644)
	if got := explained(); got.Status != 3 || !strings.Contains(got.Stderr, "run/rdma-spec/policy.yaml cannot be read as a policy") {
		t.Errorf("the policy in force cannot be read: %+v", got)
	}
}

// status and repair judge by the policy in force and name it, and refuse one whose writer has ended.
func TestPolicyInForce(t *testing.T) {
	root, node := sixteenNode(t)
	names := map[string]string{"NODE": root, "SOCKET": node[3], "FILE": clitest.File(t, "memlock: 1Gi")}
	end := register(t, root, "memlock: 16Gi", "/etc/rdma-spec/config.yaml")
	program.Compare(t, "in-force", names, `
		status --root NODE --runtime-endpoint SOCKET
		repair --dry-run --root NODE --runtime-endpoint SOCKET
		status -o json --root NODE --runtime-endpoint SOCKET
		repair --dry-run -o json --root NODE --runtime-endpoint SOCKET`)
	end()
	program.Compare(t, "ended", names, `
		status --root NODE --runtime-endpoint SOCKET
		repair --dry-run --root NODE --runtime-endpoint SOCKET
		repair --dry-run --config FILE --root NODE --runtime-endpoint SOCKET`)
}

// Only containerd stores a spec that repair can edit: on CRI-O, no command names repair for a low spec.
func TestFix_sameInAllCommands(t *testing.T) {
	files := hcatest.V100Node().Files()
	nodetest.AddProcess(files, 1, "unlimited unlimited", nodetest.IPCLocked)
	names := map[string]string{"NODE": files.Root(t), "EMPTY": clitest.File(t, "{}")}
	for name, runtime := range map[string]string{"CONTAINERD": "containerd", "CRI-O": "cri-o"} {
		names[name] = critest.Serve(t, critest.Options{Name: runtime}, nodetest.Holder(1, 0, "train-0", nodetest.Memlock(65536))).Socket
	}
	program.Compare(t, "fix", names, `
		doctor --only container-memlock --config EMPTY --root NODE --runtime-endpoint CONTAINERD
		status --config EMPTY --root NODE --runtime-endpoint CONTAINERD
		repair --dry-run --config EMPTY --root NODE --runtime-endpoint CONTAINERD

		doctor --only container-memlock --config EMPTY --root NODE --runtime-endpoint CRI-O
		status --config EMPTY --root NODE --runtime-endpoint CRI-O
		repair --dry-run --config EMPTY --root NODE --runtime-endpoint CRI-O`)
}

// A configuration that cannot be read is an error that the doctor reports, on a node and on a copy of one.
func TestDoctor_unreadablePolicy(t *testing.T) {
	root, node := sixteenNode(t)
	for name, node := range map[string][]string{"node": node, "copy": {"--root", program.Collect(t, root, node[2:]...)}} {
		got := program.Words("doctor --only container-refused --config /nonexistent.yaml", node...)
		if !strings.Contains(got.Stdout, "cannot read the configuration: stat /nonexistent.yaml: no such file or directory") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Whatever policy a node had when it was copied, the copy is judged by the one that is named.
func TestConfigFlag_overridesPolicyOfCopy(t *testing.T) {
	root, node := sixteenNode(t)
	register(t, root, "{memlock: 16Gi, optIn: {namespaces: [ml]}}", "/etc/rdma-spec/config.yaml")
	names := map[string]string{"COPY": program.Collect(t, root, node[2:]...), "POD": clitest.File(t, optedIn), "NODE": root, "SOCKET": node[3],
		"NEWER": clitest.File(t, "{memlock: 32Gi, optIn: {namespaces: [ml]}}")}
	program.Compare(t, "copy", names, `
		status --root COPY
		repair --dry-run --root COPY
		doctor --only container-memlock --root COPY
		explain -f POD --root COPY

		status --config NEWER --root COPY
		repair --dry-run --config NEWER --root COPY
		doctor --only container-memlock --config NEWER --root COPY
		explain -f POD --config NEWER --root COPY`)
}
