// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// ran says of the commands of marked blocks, which TestCommandsInTextsRun leaves out, which test does the same on a
// machine that has what they need; or why no machine of the tests runs them, or not all. The first match counts.
var ran = []struct{ command, folder, test, why string }{
	// A cluster.
	{`^helm (install|upgrade|uninstall) nri-rdma|^kubectl create namespace rdma-spec|^kubectl label namespace rdma-spec`,
		"test/e2e", "TestClusterDaemonSet", ""},
	{`^kubectl -n rdma-spec (rollout|logs|exec|get daemonset)|^bin/rdma-spec config check`, "test/e2e", "TestClusterDaemonSet", ""},
	{`^kubectl (apply|delete) -k (\.$|deploy/kustomize)`, "deploy/release/internal/chart", "TestOverlays", "built, and not applied"},
	{`^kubectl rdma |^make kubectl|kubectl-rdma /usr/local/bin`, "test/e2e", "TestClusterDaemonSet", ""},
	{`mutating-admission-policy.yaml`, "test/e2e", "TestClusterAdmission", ""},
	{`validating-admission-policy.yaml|resource-quota.yaml|^kubectl label namespace ml-team`, "test/e2e", "TestClusterAdmission", ""},
	{`deploy/device-plugins/|rdma-shared-dp-ds`, "test/e2e", "TestClusterDevicePluginWaits", ""},
	{`deploy/node-readiness|nodereadinessrule|label node node-1`, "deploy/release/internal/chart", "TestNodeReadiness", "checked, and not applied: its controller is another project's"},
	{`^kubectl create --dry-run=server -o yaml -f deploy/examples/rdma-v100.yaml`, "test/e2e", "TestClusterAdmission", ""},
	{`^kubectl exec my-pod -- (sh -c 'ulimit -l'|/tmp/rdma-spec verify|/rdma-spec/usr)|^kubectl cp bin/rdma-spec my-pod`,
		"test/e2e", "TestVerify", ""},
	{`^kubectl debug my-pod`, "test/e2e", "TestVerifyEphemeral", ""},
	{`rdma-spec explain -f -`, "cmd/rdma-spec", "TestExplainGolden", ""},
	{`two-nodes.yaml|statefulset/rdma-test|rdma-test-[01]`, "", "", "two nodes of a cluster with HCAs, and Debian's package servers: " +
		"make node-pair runs ib_write_bw between two nodes without Kubernetes"},
	{`^kubectl (get nodes -o wide|patch node my-node)`, "", "", "a node with a device plugin that was removed; reading alone otherwise"},

	// What no machine of the tests has: operators of others, their images, and cards.
	{`^helm (repo add|install (network-operator|spiderpool))|^kubectl -n spiderpool rollout restart`, "", "",
		"an operator of others, from the internet"},
	{`^kubectl (cp|exec) .*hostdev-multus|^kubectl logs vllm-master`, "", "", "Debian's packages and Volcano, from the internet"},
	{`nvidia-network-operator|nicclusterpolicy|daemonset/calico-node|mofed.wait|spiderpool|smarter-device-manager=|hostdev-multus|(pod/|exec )sriov|` +
		`examples/(network-operator|sriov|smarter-devices|vllm-volcano).yaml`, "test/e2e", "TestClusterGuides",
		"with device plugins of the test in place of the operators"},
	{`^mlxconfig |^lspci |sriov_|ip link set dev ibp|drivers/mlx5_core`, "", "", "a card of NVIDIA with virtual functions"},
	{`^nerdctl `, "", "", "nerdctl, which is not among the parts of the node; TestDocker and TestPodman use the same names"},

	// A node.
	{`^rdma-spec configure handler rdma-nvidia|^rdma-spec doctor --only configuration-kept`, "test/e2e", "TestConfigure", ""},
	{`^(bin/)?rdma-spec configure cdi|rdma-spec-cdi|^udevadm `, "deploy/systemd", "TestNodeCDI", ""},
	{`^(bin/)?rdma-spec configure `, "test/e2e", "TestConfigure", ""},
	{`^rdma-spec cdi |^journalctl -t rdma-hook`, "deploy/systemd", "TestNodeCDI", ""},
	{`^podman `, "test/e2e", "TestPodman", ""},
	{`^docker `, "test/e2e", "TestDocker", ""},
	{`^rdma-spec collect|--root node.tar.gz`, "test/e2e", "TestCollect", ""},
	{`^rdma-spec (doctor|devices)|^rdma system show`, "test/e2e", "TestDoctor", ""},
	{`^rdma-spec repair`, "test/e2e", "TestRepair", ""},
	{`^rdma-spec status`, "test/e2e", "TestUse", ""},
	{`/opt/nri/plugins/|^systemctl restart containerd`, "test/e2e", "TestLaunchedByContainerd", ""},
	{`^make packages|^dpkg |rdma-spec-doctor\.(service|timer)`, "deploy/systemd", "TestNodePackage", ""},
	{`^install |^systemctl |^journalctl -u |^curl |^rm `, "deploy/systemd", "TestNodeService", ""},
	{`^ansible-playbook `, "test/e2e", "TestConfigure", ""},

	// This repository.
	{`^go run ./cmd/rdma-spec doctor --root deploy/examples/node.tar.gz`, "cmd/rdma-spec", "TestRecordedNode", ""},
	{`^make push`, "deploy/release/internal/image", "TestPush", ""},
	{`^make (build|amd64|demo|check|update|test|test-all|site|site-test|bench|node|fuzz|e2e)\b|^go (test|build)|^bin/rdma-node|^git |^cd `, "", "",
		"it is what runs the tests, or what they are run with"},
}

// TestEveryCommandIsRunOrListed checks that each command of a marked block is in the list, that the tests in it exist, and
// that nothing in it is left over.
func TestEveryCommandIsRunOrListed(t *testing.T) {
	used := make([]bool, len(ran))
	compiled := make([]*regexp.Regexp, len(ran))
	for i, r := range ran {
		compiled[i] = regexp.MustCompile(r.command)
		if r.test == "" {
			if r.why == "" {
				t.Errorf("%s: neither a test nor a reason", r.command)
			}
		} else if err := declared(t, r.folder, r.test); err != nil {
			t.Errorf("%s: %v", r.command, err)
		}
	}
	for _, b := range blocks(t) {
		if b.language != "sh" || b.mark == "" {
			continue
		}
		for _, line := range b.lines() {
			found := false
			for i := range ran {
				if found = compiled[i].MatchString(strings.TrimSpace(line)); found {
					used[i] = true
					break
				}
			}
			if !found {
				t.Errorf("%s: no test runs %q: name one in the list of this test, or why there is none", b.file, line)
			}
		}
	}
	for i, r := range ran {
		if !used[i] {
			t.Errorf("no page has a command like %q", r.command)
		}
	}
}
