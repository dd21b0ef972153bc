// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// messagesPage leads from what people see to the check that explains it.
const messagesPage = "../../../../../docs/troubleshoot.md"

// group is a table of the page.
type group struct {
	title string
	words *regexp.Regexp
}

// groups are by who prints a message, the programs first. A message is in the first group that has one of its words,
// and else in the group without words.
var groups = []group{
	{"NCCL, and what uses it", regexp.MustCompile(`NET/IB|Call to ibv_|ibv_reg_mr_iova2|ibv_modify_qp|Bootstrap|` +
		`unhandled|Socket|shm/nccl|async event|error 12|GPU Direct|vendor err|LOC_LEN`)},
	{"UCX, Open MPI, and libfabric", regexp.MustCompile(`^network device|transports|max locked memory|openib|` +
		`OpenFabrics|Libfabric|fi_|Transport retry|ibv_create_cq\(\)|ibv_reg_mr failed: |Unable to register MR`)},
	{title: "perftest and other verbs programs"},
	{"The kernel log and drivers", regexp.MustCompile(`^(__ib_cache|apparmor=|avc: |available PCIe|Cable error|` +
		`could not insert|CREATE_MKEY|device's health|disagrees about|driver is in use|Failed loading kernel|` +
		`firmware internal|High temperature|mlx5_cmd|modprobe|PCIe Bus|wait_func|VF GUID)`)},
	{"A pod is not created, or a daemon of the node complains", regexp.MustCompile(`both tried to set|cannot be read|` +
		`custom device|select device driver|kubelet|lstat|base OCI spec|TOML|network namespace|Insufficient|plugin|` +
		`trusted|out of date|opt in|policy|nri\.sock|RDMA device|rdma device|unknown (field|service|version)|CDI|until`)},
}

// groupOf returns the index of a message's group.
func groupOf(message string) int {
	has := func(g group) bool { return g.words != nil && g.words.MatchString(message) }
	if i := slices.IndexFunc(groups, has); i >= 0 {
		return i
	}
	return slices.IndexFunc(groups, func(g group) bool { return g.words == nil })
}

// unconnected are the causes of connections that fail after memory was registered.
const unconnected = "container-gid-index container-netdev mtu-same port-active"

// ordered are the checks of messages that no check has, and of those whose most likely cause is not that of the first
// check: the most likely first. Messages without a check are about another node.
var ordered = map[string]string{
	"Connection timed out":         "port-active container-netdev",
	"Couldn't allocate MR":         "container-memlock container-ipc-lock base-spec-memlock memlock-source container-unseen",
	"Couldn't create CQ":           "container-memlock cgroup-rdma",
	"Couldn't read remote address": "",
	"Couldn't register MR":         "container-memlock memlock-source",
	"Couldn't set the link layer":  "port-active",
	"Did not detect devices":       "container-hca class-devices container-provider",
	"Failed to exchange data":      "",
	"Failed to modify QP":          unconnected,
	"Failed to open libibverbs":    "container-provider",
	"Failed to query GID":          "container-netdev gids-free",
	"Got async event":              "port-active hca-errors",
	"IB device mlx5_0 not found":   "container-devices",
	"NET/IB : No device found":     "container-devices container-environment container-provider",
	"Network is unreachable":       "container-netdev container-routes",
	"No IB devices found":          "container-provider container-hca hca-driver class-devices",
	"Using network Socket":         "container-devices container-provider container-environment",
	"ibv_open_device failed":       "container-devices device-nodes",
	"no usable transports/devices": "container-devices container-provider",
	"unhandled system error":       "container-memlock",
	`RDMA device "issm" not found`: "hca-present",

	"Call to ibv_create_cq failed with error Cannot allocate memory": "container-memlock memlock-source",
	"Call to ibv_reg_mr failed with error Cannot allocate memory":    "container-memlock memlock-source",
	"Got completion from peer ... with error 12":                     unconnected,
	"Insufficient rdma/hca_shared_devices_a":                         "kubelet-allocatable kubelet-device-plugins",
	"Please set max locked memory (ulimit -l) to 'unlimited'":        "container-memlock memlock-source",
	"There was an error initializing an OpenFabrics device":          "container-memlock container-provider port-active",
	"Transport retry count exceeded":                                 unconnected,
	"Unable to read to socket/rdma_cm":                               "",
	"ibv_create_cq() failed: Cannot allocate memory":                 "container-memlock memlock-source",
	"ibv_reg_mr_iova2 failed with error Cannot allocate memory":      "container-memlock memlock-source cma",
	"network device 'mlx5_0:1' is not available":                     "container-devices container-environment",
}

// causesOf are the first causes of messages for which that of their first check says too little.
var causesOf = map[string]string{
	"IB device mlx5_0 not found":             "the container does not hold it, or it has another name, as a bond has",
	"Insufficient rdma/hca_shared_devices_a": "the device plugin offers no device, or all are in use",
	`RDMA device "issm" not found`:           "a selector of the device plugin takes a network card without RDMA",
	"Couldn't read remote address":           "the other side ended: its last line is the cause",
	"Unable to read to socket/rdma_cm":       "the other side ended: its last line is the cause",
	"Failed to exchange data":                "the other side ended: its last line is the cause",

	"unhandled system error":      "with `NCCL_DEBUG=INFO`, the line with `ibv_` above it says it: most often memlock",
	"Connection timed out":        "a port of one of the two nodes is down",
	"Couldn't set the link layer": "the port that perftest uses is down",
	"Got async event":             "the port or the HCA had an error",
}

// messages returns the tables of messages. Each check's messages are in them, with that check.
func messages(t *testing.T) string {
	t.Helper()
	all, byID := map[string][]string{}, map[string]doctor.Check{}
	for message, ids := range ordered {
		all[message] = strings.Fields(ids)
	}
	for _, c := range checks() {
		byID[c.ID] = c
		for _, message := range c.Messages {
			if _, is := ordered[message]; !is {
				all[message] = append(all[message], c.ID)
			} else if !slices.Contains(all[message], c.ID) {
				t.Errorf("%q does not lead to %s, which has it", message, c.ID)
			}
		}
	}
	rows := make([][]string, len(groups))
	for _, message := range slices.SortedFunc(maps.Keys(all),
		func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) }) {
		cause, command, places := causesOf[message], "its log", []string(nil)
		for i, id := range all[message] {
			c, known := byID[id]
			if !known {
				t.Errorf("%q leads to %s, which is no check", message, id)
			}
			if i == 0 {
				command, cause = see(c), cmp.Or(cause, causes[id])
			}
			places = append(places, fmt.Sprintf("[%s](faults/%[1]s.md)", id))
		}
		if cause == "" {
			t.Errorf("%q has no cause: add that of %v", message, all[message])
		}
		g := groupOf(message)
		rows[g] = append(rows[g], fmt.Sprintf("| %s | %s | %s | %s |\n", cell(code(message)), cause, cell(command),
			strings.Join(places, ", ")))
	}
	var text strings.Builder
	for i, g := range groups {
		fmt.Fprintf(&text, "\n## %s\n\n| you see | first cause | to see it | cause and cure |\n|---|---|---|---|\n%s",
			g.title, strings.Join(rows[i], ""))
	}
	return text.String()
}

// see is one command that shows what a check looks at, and where it is run if that is not the node.
func see(c doctor.Check) string {
	command := seeing[c.ID]
	switch {
	case command == "":
		return code("rdma-spec doctor --only " + c.ID)
	case c.Family == "containers" && !strings.HasPrefix(command, "rdma-spec"):
		return "in the container: " + code(command)
	}
	return code(command)
}

// causes are what checks find, in the words of somebody who has the message and nothing else.
var causes = map[string]string{
	"acs":                   "ACS sends transfers between a GPU and an HCA through the CPU",
	"base-spec":             "the file of `base_runtime_spec` is missing, or is not JSON",
	"base-spec-files":       "a `base_runtime_spec` made by hand limits containers to 1024 open files",
	"cdi-files":             "the CDI file lacks the device, or is out of date",
	"cdi-on":                "CDI is off in the runtime",
	"cgroup-rdma":           "the cgroup's `rdma.max` is reached",
	"class-devices":         "the HCA has no verbs or umad device",
	"container-devices":     "the program tries an HCA that the container does not hold, or a wrong name",
	"container-environment": "a variable such as `NCCL_IB_HCA` names what the container does not have",
	"container-gid-index":   "the GID index is that of another pod",
	"container-hca":         "the container holds no HCA",
	"container-hostpath":    "`/dev/infiniband` is mounted by hostPath, and the container may not open it",
	"container-memlock":     "the container can lock too little memory (memlock)",
	"container-netdev":      "with RoCE, the pod has no interface of the HCA with an IP address",
	"container-provider":    "the image lacks libibverbs or the HCA's provider, or they are too old",
	"container-refused":     "the policy does not allow what the annotation asks for",
	"container-routes":      "several HCAs share a subnet, and answers leave by another one",
	"container-shm":         "`/dev/shm` has 64 MiB",
	"container-unseen":      "NVIDIA's container runtime added the HCAs after NRI, and the policy does not list its handler",
	"cri-serves":            "containerd's CRI plugin did not start: its configuration or base spec is wrong",
	"device-nodes":          "a file in `/dev/infiniband` is missing, or has the wrong mode",
	"efa-pages":             "EFA's limit of pages, near 95 GB",
	"gids-free":             "the port has no GID left",
	"gpu-direct":            "neither nvidia_peermem nor DMA-BUF serves GPU memory",
	"guid-valid":            "the function has a zero GUID",
	"handler-type":          "the handler of the pod's RuntimeClass has no `runtime_type`",
	"hca-answers":           "the HCA's firmware does not answer",
	"hca-driver":            "the HCA has no RDMA driver",
	"hca-errors":            "the HCA, its link, or its firmware had an error",
	"hca-present":           "an HCA was not given back by a pod, or its driver gave up",
	"kubelet-pod-resources": "the kubelet's pod resources API does not answer",
	"kubelet-root":          "the kubelet's folder is not `/var/lib/kubelet`",
	"modules-of-one-build":  "other modules use the one that is to be unloaded",
	"module-symbols":        "the module was built for other RDMA modules",
	"mtu-same":              "the MTU differs between HCAs or nodes",
	"netns-mode":            "the network namespace mode is not the one that the plugins need",
	"nri-required-plugins":  "the runtime requires a plugin that is not registered",
	"nri-rivals":            "two NRI plugins set the same limit or device",
	"nri-socket":            "NRI is off in the runtime",
	"oci-version":           "the OCI runtime is too old for the spec",
	"pcie-link":             "the PCIe link is slower or narrower than the card",
	"plugin-config":         "the plugin's configuration has a mistake",
	"plugin-registered":     "the plugin is not registered",
	"plugin-runs":           "the plugin does not run, and the pod requires it",
	"policy-readable":       "the policy file cannot be read, or others than root can write it",
	"port-active":           "the port is down, or no subnet manager has set it up",
	"rdma-cm-module":        "the module rdma_ucm is not loaded",
	"runtime-config":        "the runtime's configuration has a mistake",
	"security-denials":      "SELinux or AppArmor denies it",
	"uverbs-module":         "the module ib_uverbs is not loaded",
}
