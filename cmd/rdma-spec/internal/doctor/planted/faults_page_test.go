// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// faultsPage lists the pages in faultPages, which findings link to.
const (
	faultsPage = "../../../../../docs/faults.md"
	faultPages = "../../../../../docs/faults"
)

// familyTitles are the headings of the families, in the page.
var familyTitles = map[string]string{
	"hca": "HCAs and ports", "modules": "Kernel modules", "devices": "Devices",
	"netns": "Network namespaces", "gpu": "GPUs",
	"kernel log": "The kernel log", "memory": "Memory", "runtime": "Container runtimes",
	"nri": "NRI", "plugin": "The plugin",
	"cdi": "CDI files", "containers": "Containers", "kubelet": "The kubelet",
}

// TestFaultsPage checks that each check has a page, that the page of faults lists all of them, and that the page of
// messages has every message. -update writes them.
func TestFaultsPage(t *testing.T) {
	var list strings.Builder
	shown, family, unknown, pages := examples(t), "", maps.Clone(seeing), map[string]bool{}
	for _, c := range checks() {
		if len(ways(c)) == 0 {
			t.Errorf("nobody sees %s without the doctor", c.ID)
		}
		delete(unknown, c.ID)
		if c.Family != family {
			family = c.Family
			if familyTitles[family] == "" {
				t.Errorf("the family %q has no title", family)
			}
			fmt.Fprintf(&list, "\n## %s\n\n| check | where all is well |\n|---|---|\n", familyTitles[family])
		}
		fmt.Fprintf(&list, "| [%s](faults/%[1]s.md) | %s |\n", c.ID, c.Title)
		pages[c.ID+".md"] = true
		golden.Compare(t, filepath.Join(faultPages, c.ID+".md"), page(c, shown[c.ID]))
	}
	for id := range unknown {
		t.Errorf("there is no check %s", id)
	}
	compare(t, faultsPage, list.String())
	compare(t, messagesPage, messages(t))
	entries, err := os.ReadDir(faultPages)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !pages[e.Name()] {
			t.Errorf("%s is about no check: remove it", filepath.Join(faultPages, e.Name()))
		}
	}
}

// compare checks the part of a page between its two comments.
func compare(t *testing.T, file, text string) {
	t.Helper()
	page := scratch.Read(t, file)
	generated := regexp.MustCompile(`(?s)(<!-- checks: [^\n]* -->\n).*(<!-- end -->\n)`)
	if !generated.MatchString(page) {
		t.Fatalf("%s has no part between its two comments", file)
	}
	golden.Compare(t, file, generated.ReplaceAllString(page, "${1}"+strings.ReplaceAll(text, "$", "$$")+"\n${2}"))
}

// page is what a check is about, for somebody who has no access to the node: examples show what it finds.
func page(c doctor.Check, shown []doctor.Finding) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[rdma-spec](../../README.md) / [Faults](../faults.md) / %s\n\n# %[1]s\n\n%s\n\nWhy a fault matters: %s\n",
		c.ID, c.Title, c.Why)
	text.WriteString("\n## What people see\n\n")
	for _, message := range c.Messages {
		fmt.Fprintf(&text, "- %s\n", code(message))
	}
	if c.NoMessages != "" {
		fmt.Fprintf(&text, "No message says so: %s.\n", c.NoMessages)
	}
	text.WriteString("\n## How to see it\n\n")
	for _, way := range append(ways(c), code("rdma-spec doctor --only "+c.ID)) {
		fmt.Fprintf(&text, "- %s\n", way)
	}
	if len(shown) > 0 {
		text.WriteString("\n## Causes and fixes\n\nFor example:\n")
	}
	for _, f := range shown {
		said, fix := f.Text, "None is needed: the doctor reports it, and it is no fault."
		if f.Object != "" {
			said = f.Object + ": " + said
		}
		command := "\n\n```sh\n" + f.Cure + "\n```"
		switch {
		case f.Status == doctor.Unknown:
			fix = "Unknown is no fault: look, and decide."
		case f.Class == doctor.ClassByHand:
			fix = "By hand: " + instruction(f.Cure)
		case f.Class == doctor.ClassPaste:
			fix = "Paste, since it takes nothing from what runs:" + command
		case f.Class == doctor.ClassWithCare:
			fix = "With care: " + instruction(f.Care) + command
		}
		fmt.Fprintf(&text, "\n**%s**\n\n%s\n", plain(said), fix)
	}
	if len(c.Needs) > 0 {
		var needed []string
		for _, id := range c.Needs {
			needed = append(needed, fmt.Sprintf("[%s](%[1]s.md)", id))
		}
		fmt.Fprintf(&text, "\n## What it depends on\n\nThe doctor skips it if one of these checks fails: %s.\n",
			strings.Join(needed, ", "))
	}
	return text.String()
}

// mostExamples bounds the examples of a check.
const mostExamples = 4

// examples returns what each check finds on the nodes with planted faults.
func examples(t *testing.T) map[string][]doctor.Finding {
	found := map[string][]doctor.Finding{}
	add := func(check, object string, all []doctor.Finding) {
		for _, f := range all {
			f.Entry = ""
			known := slices.ContainsFunc(found[check],
				func(other doctor.Finding) bool { return other.Text == f.Text || f.Cure != "" && other.Cure == f.Cure })
			told := f.Status == doctor.Wrong || f.Status == doctor.Unknown || f.Status == doctor.OK && f.Object != ""
			if f.Check == check && f.Object == object && told && !known && len(found[check]) < mostExamples {
				found[check] = append(found[check], f)
			}
		}
	}
	for _, p := range hardwarePlants() {
		add(p.check, p.object, p.findings(t))
	}
	for _, name := range slices.Sorted(maps.Keys(planted)) {
		add(planted[name].check, planted[name].object, lookAt(t, name))
	}
	for check, all := range found {
		slices.SortStableFunc(all, func(a, b doctor.Finding) int {
			return cmp.Compare(map[doctor.Status]int{doctor.Wrong: 0, doctor.Unknown: 1, doctor.OK: 2}[a.Status],
				map[doctor.Status]int{doctor.Wrong: 0, doctor.Unknown: 1, doctor.OK: 2}[b.Status])
		})
		found[check] = all
	}
	return found
}

// ways are commands that show what a check looks at: the usual ones, and the files that it declares.
func ways(c doctor.Check) (all []string) {
	if command := seeing[c.ID]; command != "" {
		all = append(all, code(command))
	}
	for _, file := range c.Reads {
		if len(all) < 2 && !strings.HasPrefix(file, "proc/[") && !slices.Contains(doctor.GPUReads, file) {
			all = append(all, code("/"+file))
		}
	}
	return all
}

// seeing are commands without rdma-spec.
var seeing = map[string]string{
	"hca-answers": "rdma link show", "port-active": "rdma link show", "port-rate": "ibstat", "mtu-same": "ip -br link; ip link show",
	"guid-valid": "ibstat -l; cat /sys/class/infiniband/*/node_guid", "guid-unique": "cat /sys/class/infiniband/*/node_guid",
	"firmware-same": "cat /sys/class/infiniband/*/fw_ver", "class-devices": "ls /dev/infiniband /sys/class/infiniband_verbs",
	"pcie-link": "lspci -vv | grep -e LnkCap: -e LnkSta:", "hca-driver": "lspci -k -d 15b3:", "uverbs-module": "lsmod | grep ib_uverbs",
	"rdma-cm-module": "ls -l /dev/infiniband/rdma_cm", "modules-of-one-build": "modinfo -n ib_core mlx5_core mlx5_ib",
	"device-nodes": "ls -l /dev/infiniband", "netns-mode": "rdma system show", "gpu-direct": "lsmod | grep nvidia_peermem",
	"acs": "lspci -vv | grep ACSCtl", "iommu": "cat /sys/kernel/iommu_groups/*/type", "module-symbols": "dmesg | grep disagrees",
	"hca-errors": "dmesg | grep -e mlx5 -e 'PCIe Bus Error'", "max-map-count": "sysctl vm.max_map_count", "gids-free": "show_gids",
	"hca-present": "rdma dev show; ls /sys/bus/auxiliary/devices", "container-environment": "env | grep -e NCCL -e UCX",
	"container-mtu": "ip link show", "container-routes": "ip route; cat /proc/sys/net/ipv4/conf/*/rp_filter",
	"container-gpu": "nvidia-smi topo -m", "security-denials": "dmesg | grep -i denied", "cma": "grep -i cma /proc/meminfo", "efa-pages": "grep HugePages_Total /proc/meminfo",
	"runtime-config": "containerd config dump", "cri-serves": "crictl version", "runtime-rlimits": "containerd --version; crio --version",
	"memlock-source": "ulimit -l", "handler-type": "containerd config dump | grep -A1 runtimes", "base-spec": "containerd config dump | grep base_runtime_spec", "base-spec-files": "ulimit -n",
	"base-spec-memlock": "ulimit -l", "oci-version": "crun --version; runc --version", "nri-on": "ls -l /var/run/nri/nri.sock",
	"nri-socket": "ls -l /var/run/nri/nri.sock", "nri-owner": "ss -xlp | grep nri.sock",
	"nri-required-plugins": "containerd config dump | grep required_plugins", "nri-timeouts": "containerd config dump | grep plugin_.*_timeout",
	"nri-rivals": "ls /opt/nri/plugins", "plugin-runs": "systemctl status nri-rdma", "plugin-config": "journalctl -u nri-rdma",
	"plugin-registered": "journalctl -u nri-rdma", "policy-readable": "ls -l /run/rdma-spec/policy.yaml",
	"plugin-current": "ls -l /proc/$(pidof nri-rdma)/exe", "configuration-kept": "rdma-spec configure --all --dry-run",
	"cdi-files": "rdma-spec cdi list", "cdi-on": "containerd config dump | grep cdi", "container-memlock": "ulimit -l",
	"container-ipc-lock": "grep CapEff /proc/self/status", "container-refused": "rdma-spec status", "container-unseen": "rdma-spec status", "container-hca": "ls /dev/infiniband",
	"container-port": "ibv_devinfo", "container-hostpath": "mount | grep infiniband", "container-netdev": "ip addr; show_gids",
	"container-provider": "ls /usr/lib*/*/libibverbs /etc/libibverbs.d", "container-devices": "ibv_devices; ls /dev/infiniband",
	"container-gid-index": "echo $NCCL_IB_GID_INDEX; show_gids", "container-shm": "df -h /dev/shm",
	"kubelet-root": "ps -C kubelet -o args", "kubelet-device-plugins": "ls -l /var/lib/kubelet/device-plugins",
	"kubelet-pod-resources": "ls -l /var/lib/kubelet/pod-resources", "kubelet-allocatable": "kubectl describe node | grep -A15 Allocatable",
}

// plain is a sentence in Markdown.
func plain(text string) string {
	return strings.NewReplacer("*", `\*`, "<", `\<`, "`", "'", "$", `\$`).Replace(text)
}

var lastCommand = regexp.MustCompile(`^(.*\b(?:see|why|then|instance|and|now): )([^()]+)$`)

// instruction is a sentence whose last words may be a command.
func instruction(text string) string {
	if found := lastCommand.FindStringSubmatch(text); found != nil {
		return plain(found[1]) + code(found[2])
	}
	return plain(text)
}

// code is a message in Markdown.
func code(message string) string { return "`" + strings.ReplaceAll(message, "`", "'") + "`" }

// cell is Markdown in a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// TestFindingsLinkToPages checks that the address of each check can be typed, and that --explain has its page.
func TestFindingsLinkToPages(t *testing.T) {
	for _, c := range checks() {
		if text, err := docs.Fault(c.ID); err != nil || !strings.Contains(text, "\n# "+c.ID+"\n") {
			t.Errorf("%s has no page: %v", c.ID, err)
		}
		if !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(c.ID) {
			t.Errorf("%s is not a name in an address", c.ID)
		}
	}
}
