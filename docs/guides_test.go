// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// steps are what public guides have people do, and what they get stuck at, with the page that has it, the heading above
// it, and a few of its words.
var steps = []struct{ step, page, heading, words string }{
	{"look at the HCAs of a node", "guide-gpu-cluster.md", "Check the HCAs on all nodes", "set `ifNames` to the interfaces"},
	{"of all nodes", "guide-gpu-cluster.md", "Check the HCAs on all nodes", "ansible-playbook -i node-1,node-2 -e programs=$PWD/bin deploy/ansible/hcas.yaml"},
	{"Network Operator, pinned, without NFD", "guide-gpu-cluster.md", "Define resources for the HCAs", "--version 25.1.0 -n nvidia-network-operator --create-namespace -f deploy/examples/network-operator.values.yaml"},
	{"does the operator run", "guide-gpu-cluster.md", "Define resources for the HCAs", "-l app.kubernetes.io/name=network-operator"},
	{"a policy for each type of node", "guide-gpu-cluster.md", "Define resources for the HCAs", "a NicNodePolicy for each type of node"},
	{"the driver's container took a node away", "guide-gpu-cluster.md", "Let the operator load the driver", "must not use the card"},
	{"the driver's logs filled the disk", "guide-gpu-cluster.md", "Let the operator load the driver", "SystemMaxUse=1G"},
	{"storage holds the driver", "guide-gpu-cluster.md", "Let the operator load the driver", "UNLOAD_STORAGE_MODULES"},
	{"which version has which field", "guide-gpu-cluster.md", "Let the operator load the driver", "kubectl explain nicclusterpolicy.spec.ofedDriver"},
	{"two resources", "guide-gpu-cluster.md", "Define resources for the HCAs", "deploy/examples/network-operator.yaml"},
	{"which way gives which performance", "hcas-for-pods.md", "What performance to expect", "virtual functions"},
	{"public measurements", "hcas-for-pods.md", "What performance to expect", "94.7 of 100 Gb/s"},
	{"what an image must have", "test-a-transfer.md", "Is my image ready?", "deploy/examples/Containerfile"},
	{"infiniband-diags, libibumad3", "test-a-transfer.md", "Is my image ready?", "`infiniband-diags`"},
	{"is the resource on the node", "guide-gpu-cluster.md", "Check that the nodes have the resource", "kubectl rdma resources"},
	{"34 of 34 pods, and a node without", "guide-gpu-cluster.md", "Check that the nodes have the resource", "34 of 34 pods"},
	{"hostdev with Multus and whereabouts", "guide-gpu-cluster.md", "Give a pod a whole HCA", "Whereabouts chooses the address"},
	{"net1 is there, what now?", "guide-gpu-cluster.md", "Give a pod a whole HCA", "net1/device/infiniband"},
	{"a stale resource", "troubleshoot.md", "A resource from a removed device plugin", "kubectl patch node my-node"},
	{"ib_write_bw on one node", "test-a-transfer.md", "On one node", "ib_write_bw -s 8M -F localhost"},
	{"ib_write_bw on two nodes", "test-a-transfer.md", "Between two nodes", "ib_write_bw -s 8M -F 10.244.1.17"},
	{"all sizes and several queue pairs", "test-a-transfer.md", "Between two nodes", "ib_write_bw -a -F --report_gbits -q 2"},
	{"ib_read_lat", "test-a-transfer.md", "Compare RDMA with TCP", "ib_read_lat -F SERVER"},
	{"vLLM and Ray do not fit", "guide-gpu-cluster.md", "Run vLLM on two nodes", "RDMA is not the cause"},
	{"why can Kubernetes not do it", "comparison.md", "Kubernetes' own field", "kubernetes/kubernetes/issues/3595"},
	{"why can containerd not do it", "comparison.md", "Kubernetes' own field", "containerd/containerd/issues/3150"},
	{"vLLM as a Volcano Job", "guide-gpu-cluster.md", "Run vLLM on two nodes", "deploy/examples/vllm-volcano.yaml"},
	{"NCCL_IB_HCA", "guide-gpu-cluster.md", "Run vLLM on two nodes", "`NCCL_IB_HCA`"},
	{"NCCL_SOCKET_IFNAME", "guide-gpu-cluster.md", "Run vLLM on two nodes", "`NCCL_SOCKET_IFNAME`"},
	{"why ulimit did not help", "guide-gpu-cluster.md", "Why other methods did not help", "SYS_RESOURCE capability"},
	{"why limits.conf did not help", "guide-gpu-cluster.md", "Why other methods did not help", "applies to login sessions"},
	{"why LimitMEMLOCK did not help", "guide-gpu-cluster.md", "Why other methods did not help", "after `systemctl daemon-reload` and a restart"},
	{"base_runtime_spec on handler nvidia", "guide-gpu-cluster.md", "containerd 1.6", "`nvidia` is the default handler"},
	{"a copy of runc loses the GPU", "guide-gpu-cluster.md", "containerd 1.6", "would have no GPUs"},
	{"containerd 1.7", "guide-gpu-cluster.md", "containerd 1.7", "NRI is off by default"},
	{"what the operator's toolkit rewrites", "guide-gpu-cluster.md", "What the GPU Operator overwrites", "each time its pod starts"},
	{"NRI mode of the GPU Operator", "guide-gpu-cluster.md", "What the GPU Operator overwrites", "cdi.nriPluginEnabled=true"},
	{"after an update again", "guide-gpu-cluster.md", "What the GPU Operator overwrites", "doctor --only configuration-kept"},
	{"kernel upgrade, mofed.wait", "guide-gpu-cluster.md", "After a kernel upgrade", "network.nvidia.com/operator.mofed.wait=true"},
	{"a patch is overwritten", "guide-gpu-cluster.md", "After a kernel upgrade", "If Helm or Argo CD created the policy, set the tolerations in the chart or the application, because either tool would overwrite a patch"},
	{"DKMS: the driver is well", "guide-gpu-cluster.md", "After a kernel upgrade", "check the operator, not the card"},
	{"taint, cordon", "guide-gpu-cluster.md", "After a kernel upgrade", "node.kubernetes.io/unschedulable"},
	{"SIGSEGV of vLLM", "guide-gpu-cluster.md", "Run vLLM on two nodes", "SIGSEGV"},
	{"SIGSEGV of vLLM, without a message", "troubleshoot.md", "No message", "SIGSEGV"},
	{"a bond", "guide-gpu-cluster.md", "Check the HCAs on all nodes", "`mlx5_bond_0`"},
	{"Ethernet or InfiniBand mode", "guide-sriov.md", "Choose InfiniBand or Ethernet", "LINK_TYPE_P1=1"},
	{"nvidia_peermem, gdrcopy", "guide-gpu-cluster.md", "Test a transfer", "gdrcopy"},
	{"Calico stays on its interface", "guide-spiderpool.md", "Prepare the nodes", "IP_AUTODETECTION_METHOD=kubernetes-internal-ip"},
	{"the cards' driver", "guide-spiderpool.md", "Prepare the nodes", "mlnxofedinstall --all"},
	{"useHostMofed", "guide-spiderpool.md", "Prepare the nodes", "driver.rdma.useHostMofed=true"},
	{"copy-on-fork", "guide-spiderpool.md", "Prepare the nodes", "netns shared copy-on-fork on"},
	{"RDMA metrics and dashboards", "guide-spiderpool.md", "Install Spiderpool", "enabledRdmaMetric=true,grafanaDashboard.install=true"},
	{"netns shared", "guide-spiderpool.md", "Prepare the nodes", "rdma system set netns shared"},
	{"eight resources of the shared device plugin", "guide-spiderpool.md", "Define the networks", "`configList`"},
	{"SpiderIPPool", "guide-spiderpool.md", "Define the networks", "SpiderIPPool `gpu1`"},
	{"SpiderMultusConfig", "guide-spiderpool.md", "Define the networks", "SpiderMultusConfig `gpu1-macvlan`"},
	{"eight interfaces, nine routes", "guide-spiderpool.md", "Test it", "a routing table for each"},
	{"the GID index grows", "guide-spiderpool.md", "Which GID index?", "gets a higher index"},
	{"webhook injection", "guide-spiderpool.md", "Create a pod", "cni.spidernet.io/network-resource-inject"},
	{"its older annotation", "guide-spiderpool.md", "Create a pod", "cni.spidernet.io/rdma-resource-inject"},
	{"one annotation for networks", "guide-spiderpool.md", "Create a pod", "Do not add any other annotation for networks"},
	{"namespaces, and a restart", "guide-spiderpool.md", "Create a pod", "rollout restart deployment/spiderpool-controller"},
	{"explain and the webhook", "guide-spiderpool.md", "Create a pod", "--dry-run=server -o yaml -f pod.yaml | rdma-spec explain -f -"},
	{"SR-IOV: BIOS", "guide-sriov.md", "Turn SR-IOV on", "**BIOS**"},
	{"SR-IOV: grub", "guide-sriov.md", "Turn SR-IOV on", "GRUB_CMDLINE_LINUX"},
	{"SR-IOV: MMIO", "guide-sriov.md", "Turn SR-IOV on", "`pci=realloc`"},
	{"SR-IOV: mlxconfig", "guide-sriov.md", "Turn SR-IOV on", "SRIOV_EN=1 NUM_OF_VFS=8"},
	{"SR-IOV: sriov_numvfs", "guide-sriov.md", "Create VFs manually", "device/sriov_numvfs"},
	{"zero GUIDs of VFs", "guide-sriov.md", "Zero GUIDs", "port_guid"},
	{"the known issue's number", "guide-sriov.md", "Zero GUIDs", "1047616"},
	{"smarter-device-manager", "guide-sriov.md", "With smarter-device-manager", "deploy/examples/smarter-devices.yaml"},
	{"nerdctl --device", "guide-sriov.md", "With nerdctl", "nerdctl run --rm --device"},
	{"RDMA against TCP", "test-a-transfer.md", "Compare RDMA with TCP", "iperf3 -c SERVER"},
	{"rsocket by LD_PRELOAD", "test-a-transfer.md", "Compare RDMA with TCP", "librspreload.so"},
	{"qperf", "test-a-transfer.md", "Compare RDMA with TCP", "qperf SERVER tcp_lat tcp_bw"},
	{"IPoIB", "test-a-transfer.md", "Compare RDMA with TCP", "TCP over IPoIB"},
}

// TestStepsOfGuides checks that each step of a public guide has its place in a page.
func TestStepsOfGuides(t *testing.T) {
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	for _, s := range steps {
		text := repository.Read(t, "docs/"+s.page)
		found := false
		for _, at := range heading.FindAllStringSubmatchIndex(text, -1) {
			if text[at[2]:at[3]] != s.heading {
				continue
			}
			section, _, _ := strings.Cut(text[at[1]:], "\n#")
			found = found || strings.Contains(strings.Join(strings.Fields(section), " "), s.words)
		}
		if !found {
			t.Errorf("%s: docs/%s has no %q below %q", s.step, s.page, s.words, s.heading)
		}
	}
}

// TestImage checks that the example of an image installs what the page says.
func TestImage(t *testing.T) {
	_, section, _ := strings.Cut(repository.Read(t, "docs/test-a-transfer.md"), "## Is my image ready?")
	table, _, _ := strings.Cut(section, "deploy/examples/Containerfile")
	file, count := repository.Read(t, "deploy/examples/Containerfile"), 0
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			count++
			if !strings.Contains(file, name[1]) {
				t.Errorf("the image lacks %s", name[1])
			}
		}
	}
	if count < 6 {
		t.Errorf("%d packages found, want more", count)
	}
}

// TestIssueTemplates checks that each template is a form as GitHub reads it, and that the commands in it exist. Those about
// a node ask for the archive of collect.
func TestIssueTemplates(t *testing.T) {
	files, err := filepath.Glob(repository.Path(t, ".github/ISSUE_TEMPLATE/*.yml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	p := repository.Build(t)
	for _, file := range files {
		text := repository.Read(t, file)
		var form struct {
			Name, Description string
			Labels            []string
			Body              []struct {
				Type, ID    string
				Attributes  struct{ Label, Description, Placeholder, Render string }
				Validations struct{ Required bool }
			}
			Blank bool                                `json:"blank_issues_enabled"`
			Links []struct{ Name, URL, About string } `json:"contact_links"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &form); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if filepath.Base(file) == "config.yml" {
			continue
		}
		if form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s lacks a name, a description, or a body", file)
		}
		asks := false
		for _, field := range form.Body {
			for _, command := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(field.Attributes.Description, -1) {
				if _, problem := p.Check(command[1]); problem != "" {
					t.Errorf("%s: %s", file, problem)
				}
				asks = asks || strings.HasPrefix(command[1], "rdma-spec collect --to ")
			}
		}
		if name := filepath.Base(file); asks != (name == "fault.yml" || name == "hardware.yml") {
			t.Errorf("%s asks for an archive: %t", name, asks)
		}
	}
}
