// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// messagesPage leads from what people see to the check that explains it.
const messagesPage = "../../../../../docs/troubleshoot.md"

// wording is what programs say for one cause, in the words that people search for.
type wording struct {
	says []string
	// causes are the checks, or other pages, that explain it, the most likely first. Without one, the cause is on another
	// node, or no fault.
	causes string
	first  string // the first cause in words, where those of its check say too little
}

// unconnected are the causes of connections that fail after memory was registered.
const unconnected = "container-gid-index container-netdev mtu-same port-active"

// programs are who says what. From them come docs/troubleshoot.md, the messages on the pages of checks, and so what the
// search of the site finds.
var programs = []struct {
	name string
	says []wording
}{
	{"NCCL, and what uses it", []wording{
		{[]string{"Bootstrap : no socket interface found"}, "container-environment", ""},
		{[]string{
			"Call to ibv_create_cq failed with error Cannot allocate memory",
			"Call to ibv_create_qp failed with error Cannot allocate memory",
			"Call to ibv_reg_mr failed with error Cannot allocate memory",
			"ibv_reg_mr_iova2 failed with error Cannot allocate memory",
		}, "container-memlock memlock-source cma", ""},
		{[]string{
			"Call to ibv_modify_qp failed with error No such device",
			"vendor err 129",
		}, "container-gid-index", ""},
		{[]string{
			"Connection closed by remote peer",
			"remote process exited or there was a network error",
			"Segmentation fault",
		}, "container-memlock", "another rank ended: read its last line; after `Segmentation fault`, mostly memlock"},
		{[]string{"Error while creating shared memory segment /dev/shm/nccl"}, "container-shm", ""},
		{[]string{"Got async event"}, "port-active hca-errors", "the port or the HCA had an error"},
		{[]string{
			"Got async event : local access violation work queue error",
		}, "", "no fault of the node: the program used memory that is not registered"},
		{[]string{
			"Got completion from peer ... with error 12",
		}, unconnected, ""},
		{[]string{
			"GPU Direct RDMA Disabled for HCA",
			"ibv_reg_mr_iova2 failed with error Bad address",
			"No module present for GPU Direct RDMA",
		}, "gpu-direct", ""},
		{[]string{"ibv_modify_qp failed with error Connection timed out"}, "container-routes", ""},
		{[]string{"IBV_WC_LOC_LEN_ERR"}, "mtu-same", ""},
		{[]string{
			"NET/IB : No device found",
			"Unable to open device mlx5_0",
			"Using network Socket",
		}, "container-devices container-environment container-provider", ""},
		{[]string{
			"NET/Plugin: Could not find: libnccl-net.so",
			"undefined symbol: mlx5dv_get_data_direct_sysfs_path",
		}, "", "no fault: the image's rdma-core is older than its NCCL; read the later lines"},
		{[]string{
			"unhandled system error",
		}, "container-memlock", "with `NCCL_DEBUG=INFO`, the line with `ibv_` above it; mostly memlock"},
		{[]string{"vendor err 81"}, "acs", ""},
	}},
	{"UCX, Open MPI, and libfabric", []wording{
		{[]string{"fi_getinfo: -61"}, "container-hostpath", ""},
		{[]string{
			"fi_mr_reg: Cannot allocate memory",
			"Unable to register MR: Cannot allocate memory",
		}, "efa-pages", ""},
		{[]string{
			"Failed to create a completion queue (CQ)",
			"Failed to register memory 0x7f0000000000: Cannot allocate memory [12]",
			"ibv_create_cq() failed: Cannot allocate memory",
			"Libfabric error: (-12) Cannot allocate memory",
			"Please set max locked memory (ulimit -l) to 'unlimited'",
			"rdma_iba_hca_init: cannot create cq",
			"The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory",
		}, "container-memlock memlock-source", ""},
		{[]string{
			"ibv_create_ah(dlid=49152 sl=0 port=1 dgid=fe80::1 sgid_index=0) for UD mlx5 connect on mlx5_0 failed: " +
				"No such device",
			"ibv_modify_qp(UMR QP 0x1a2b) failed to modify to RTR: No such device",
		}, "container-netdev", ""},
		{[]string{"ibv_reg_mr failed: Bad address"}, "gpu-direct", ""},
		{[]string{"network device 'mlx5_0:1' is not available"}, "container-devices container-environment", ""},
		{[]string{"network device is not available, please use one or more of"}, "container-environment", ""},
		{[]string{
			"NIXL_ERR_BACKEND",
		}, "container-environment container-devices", "read the line of UCX above it; `UCX_NET_DEVICES=all` includes management HCAs"},
		{[]string{"No active HCAs found on the system"}, "port-active container-hca", ""},
		{[]string{
			"Destination is unreachable",
			"no active messages transport",
			"no usable transports/devices",
		}, "container-devices container-provider", ""},
		{[]string{"Not enough memory to write total of", "Please check that /dev/shm"}, "container-shm", ""},
		{[]string{
			"There was an error initializing an OpenFabrics device",
		}, "container-memlock container-provider port-active", ""},
		{[]string{
			"Transport retry count exceeded",
			"transport retry counter exceeded",
		}, unconnected, ""},
	}},
	{"perftest and other verbs programs", []wording{
		{[]string{"can't open UMAD port"}, "class-devices", ""},
		{[]string{
			"Connection timed out",
		}, "port-active container-netdev", "a port of one of the two nodes is down"},
		{[]string{
			"Couldn't allocate MR",
		}, "container-memlock container-ipc-lock base-spec-memlock memlock-source container-unseen", ""},
		{[]string{"Couldn't allocate PD"}, "cgroup-rdma", ""},
		{[]string{"Couldn't create CQ", "Couldn't create IB resources"}, "container-memlock cgroup-rdma", ""},
		{[]string{
			"Couldn't get device attributes",
			"Failed to create QP",
			"Unable to create QP",
		}, "container-memlock container-hostpath", ""},
		{[]string{
			"Couldn't read remote address",
			"Failed to exchange data",
			"Unable to read to socket/rdma_cm",
		}, "", "the other side ended: read its last line"},
		{[]string{
			"Couldn't register MR",
			"libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes",
			"ulimit: max locked memory: cannot modify limit: Operation not permitted",
		}, "container-memlock memlock-source", ""},
		{[]string{"Couldn't set the link layer"}, "port-active", "the port that perftest uses is down"},
		{[]string{
			"Did not detect devices",
			"No available RNIC",
			"Unable to find the Infiniband/RoCE device",
		}, "container-hca class-devices container-provider", ""},
		{[]string{
			"does not support the kernel ABI of 6",
			"Failed to open libibverbs",
			"libibverbs: Warning: couldn't load driver",
			"no userspace device-specific driver found for",
		}, "container-provider", ""},
		{[]string{"Failed to get IB devices list: Function not implemented"}, "uverbs-module", ""},
		{[]string{"Failed to modify QP"}, unconnected, ""},
		{[]string{"Failed to query GID"}, "container-netdev gids-free", ""},
		{[]string{
			"IB device mlx5_0 not found",
		}, "container-devices", "the container does not hold it, or it has another name, such as a bond's"},
		{[]string{
			"ibdev2netdev: command not found",
		}, "", "the image has no tools of MLNX_OFED: run `rdma link` on the node"},
		{[]string{
			"Couldn't get context for the device",
			"Failed to open device mlx5_0",
			"ibv_open_device failed",
		}, "container-devices device-nodes", ""},
		{[]string{"Network is unreachable"}, "container-netdev container-routes", ""},
		{[]string{
			"No data available",
			"RDMA_CM_EVENT_ADDR_ERROR, error: -19",
			"RDMA_CM_EVENT_ROUTE_ERROR",
			"rdma_create_ep: No such device",
		}, "container-netdev", ""},
		{[]string{"No IB devices found"}, "container-provider container-hca hca-driver class-devices", ""},
		{[]string{"Port number 1 state is Down", "PORT_DOWN"}, "port-active container-port", ""},
		{[]string{"rdma_create_event_channel: No such device"}, "rdma-cm-module", ""},
		{[]string{"Too many open files"}, "container-files base-spec-files", ""},
	}},
	{"The kernel log and drivers", []wording{
		{[]string{"__ib_cache_gid_add: unable to add gid"}, "gids-free", ""},
		{[]string{`apparmor="DENIED"`, "avc: denied { ipc_lock }"}, "security-denials", ""},
		{[]string{"available PCIe bandwidth, limited by"}, "pcie-link", ""},
		{[]string{
			"Cable error",
			"CREATE_MKEY",
			"device's health compromised",
			"firmware internal error",
			"High temperature on sensors",
			"PCIe Bus Error: severity=Uncorrectable",
		}, "hca-errors", ""},
		{[]string{
			"could not insert 'nvidia_peermem': Invalid argument",
			"disagrees about version of symbol",
		}, "module-symbols", ""},
		{[]string{"driver is in use", "modprobe: FATAL: Module mlx5_core is in use."}, "modules-of-one-build", ""},
		{[]string{"Failed loading kernel module mlx5_ib"}, "hca-driver", ""},
		{[]string{
			"mlx5_cmd_out_err",
			"wait_func: timeout. Will cause a leak of a command resource",
		}, "hca-answers", ""},
		{[]string{"VF GUID is not valid"}, "guid-valid", ""},
	}},
	{"A pod is not created, or a daemon of the node complains", []wording{
		{[]string{"container.Runtime.Name must be set"}, "handler-type", ""},
		{[]string{"both tried to set"}, "nri-rivals", ""},
		{[]string{"cannot be read as a policy", "is not trusted"}, "policy-readable", ""},
		{[]string{`could not select device driver "cdi" with capabilities: []`}, "cdi-on", ""},
		{[]string{
			"crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted",
			"error setting rlimit type 8: operation not permitted",
		}, "runtime-rlimits cdi.md#rootless-containers", "the runtime may not raise its own limit"},
		{[]string{
			"dial unix /var/lib/kubelet/device-plugins/kubelet.sock: connect: no such file or directory",
		}, "kubelet-root", ""},
		{[]string{
			`error gathering device information while adding custom device "/dev/infiniband/uverbs0"`,
		}, "device-nodes", ""},
		{[]string{"failed to load base OCI spec"}, "base-spec", ""},
		{[]string{"failed to load TOML", "invalid disabled plugin URI"}, "runtime-config", ""},
		{[]string{
			"closing plugin 90-rdma, failed to handle event 4: context deadline exceeded",
			"failed to register with NRI/Runtime: ttrpc: closed",
		}, "nri-timeouts looking-at-a-node.md#a-container-was-not-adjusted", ""},
		{[]string{"incorrect RDMA subsystem network namespace"}, "netns-mode", ""},
		{[]string{
			"Insufficient rdma/hca_shared_devices_a",
		}, "kubelet-allocatable kubelet-device-plugins", "the device plugin offers no device, or all are in use"},
		{[]string{
			"is out of date: the plugin that wrote it has ended",
			"no policy is in force",
		}, "plugin-registered", ""},
		{[]string{"lstat /dev/infiniband/uverbs0: no such file or directory"}, "class-devices", ""},
		{[]string{"may not opt in by annotation"}, "container-refused", ""},
		{[]string{
			"failed to find runtime handler rdma from runtime list",
			`no runtime for "rdma" is configured`,
			`RuntimeClass "rdma" not found`,
		}, "configuration-kept without-nri.md", "the handler is not in the runtime's configuration"},
		{[]string{"nri.sock: no such file or directory"}, "nri-socket", ""},
		{[]string{
			`RDMA device "issm" not found`,
		}, "hca-present", "the device plugin selects a network card without RDMA"},
		{[]string{`RDMA device "rdma_cm" not found`}, "rdma-cm-module", ""},
		{[]string{"rdma device not found for netdev"}, "hca-present", ""},
		{[]string{`required plugin "rdma" not present`}, "plugin-runs", ""},
		{[]string{"the configuration cannot be read: until it can", "unknown field"}, "plugin-config", ""},
		{[]string{"the kubelet did not report"}, "kubelet-pod-resources", ""},
		{[]string{
			`unable to validate against any security context constraint: capabilities.add: Invalid value: "IPC_LOCK"`,
			`violates PodSecurity "baseline:latest": non-default capabilities`,
		}, "pods.md#my-program-cannot-register-memory", "the pod adds a capability; with the plugin, it needs no capability of its own"},
		{[]string{"unknown service runtime.v1.RuntimeService"}, "cri-serves", ""},
		{[]string{"unknown version specified"}, "oci-version", ""},
		{[]string{"unresolvable CDI devices"}, "cdi-files", ""},
		{[]string{"validation error: required plugin"}, "nri-required-plugins", ""},
	}},
}

// messagesOf returns what people see where a check finds a fault: the messages that lead to it first, or else all that
// lead to it. So a message is on one page, that of its first cause.
func messagesOf(check string) []string {
	var first, later []string
	for _, p := range programs {
		for _, w := range p.says {
			switch slices.Index(strings.Fields(w.causes), check) {
			case -1:
			case 0:
				first = append(first, w.says...)
			default:
				later = append(later, w.says...)
			}
		}
	}
	if len(first) == 0 {
		first = later
	}
	slices.SortFunc(first, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return first
}

// messages returns the tables of messages.
func messages(t *testing.T) string {
	t.Helper()
	known := map[string]bool{}
	for _, c := range checks() {
		known[c.ID] = true
	}
	var text strings.Builder
	seen := map[string]bool{}
	for _, p := range programs {
		fmt.Fprintf(&text, "\n## %s\n\n| you see | first cause | page |\n|---|---|---|\n", p.name)
		for _, w := range p.says {
			cause, places, said := w.first, []string(nil), []string(nil)
			for i, id := range strings.Fields(w.causes) {
				page, _, elsewhere := strings.Cut(id, ".md")
				switch {
				case elsewhere:
					places = append(places, fmt.Sprintf("[%s](%s)", page, id))
				case !known[id]:
					t.Errorf("%q leads to %s, which is no check", w.says, id)
				default:
					places = append(places, fmt.Sprintf("[%s](faults/%[1]s.md)", id))
				}
				if i == 0 {
					cause = cmp.Or(cause, causes[id])
				}
			}
			for _, message := range w.says {
				if said = append(said, code(message)); seen[message] {
					t.Errorf("%q is there twice", message)
				}
				seen[message] = true
			}
			if cause == "" {
				t.Errorf("%q has no cause: add that of %q", w.says, w.causes)
			}
			fmt.Fprintf(&text, "| %s | %s | %s |\n", cell(strings.Join(said, "<br>")), cause, strings.Join(places, ", "))
		}
	}
	return text.String()
}

// causes are what checks find, in the words of somebody who has the message and nothing else.
var causes = map[string]string{
	"acs":                   "ACS sends GPU transfers through the CPU",
	"base-spec":             "the file of `base_runtime_spec` is missing, or is not JSON",
	"base-spec-files":       "`base_runtime_spec` limits containers to 1024 files",
	"cdi-files":             "the CDI file lacks the device, or is out of date",
	"cdi-on":                "CDI is off in the runtime",
	"cgroup-rdma":           "the cgroup's `rdma.max` is reached",
	"class-devices":         "the HCA has no verbs or umad device",
	"container-devices":     "the container does not hold the HCA, or its name is wrong",
	"container-environment": "a variable, such as `NCCL_IB_HCA`, names what is not there",
	"container-gid-index":   "the GID index is that of another pod",
	"container-hca":         "the container holds no HCA",
	"container-hostpath":    "`/dev/infiniband` is a hostPath volume",
	"container-files":       "a process may open only 1024 files",
	"container-memlock":     "memlock is too low",
	"container-netdev":      "the pod has no interface of the HCA with an IP address",
	"container-provider":    "the image lacks libibverbs or the HCA's provider",
	"container-refused":     "the policy does not allow it",
	"container-routes":      "HCAs share a subnet, and answers leave by another one",
	"container-shm":         "`/dev/shm` has 64 MiB",
	"container-unseen":      "NVIDIA's runtime added the HCAs after NRI",
	"cri-serves":            "containerd's CRI plugin did not start",
	"device-nodes":          "a file in `/dev/infiniband` is missing, or has the wrong mode",
	"efa-pages":             "EFA's limit of pages, near 95 GB",
	"gids-free":             "the port has no GID left",
	"gpu-direct":            "neither nvidia_peermem nor DMA-BUF serves GPU memory",
	"guid-valid":            "the function has a zero GUID",
	"handler-type":          "the handler of the pod's RuntimeClass has no `runtime_type`",
	"hca-answers":           "the HCA's firmware does not answer",
	"hca-driver":            "the HCA has no RDMA driver",
	"hca-errors":            "the HCA, its link, or its firmware had an error",
	"hca-present":           "a pod did not give the HCA back, or its driver gave up",
	"kubelet-pod-resources": "the kubelet's pod resources API does not answer",
	"kubelet-root":          "the kubelet's folder is not `/var/lib/kubelet`",
	"modules-of-one-build":  "other modules use the one that is to be unloaded",
	"module-symbols":        "the module was built for other RDMA modules",
	"configuration-kept":    "another tool rewrote the runtime's configuration",
	"nri-timeouts":          "the plugin did not answer in time",
	"mtu-same":              "the MTU differs between HCAs or nodes",
	"netns-mode":            "the network namespace mode is the wrong one",
	"nri-required-plugins":  "the runtime requires a plugin that is not registered",
	"nri-rivals":            "two NRI plugins set the same limit or device",
	"nri-socket":            "NRI is off in the runtime",
	"oci-version":           "the OCI runtime is too old for the spec",
	"pcie-link":             "the PCIe link is slower or narrower than the card",
	"plugin-config":         "the plugin's configuration has a mistake",
	"plugin-registered":     "the plugin is not registered",
	"plugin-runs":           "the plugin does not run, and the pod requires it",
	"policy-readable":       "the policy file cannot be read, or others can write it",
	"port-active":           "the port is down, or lacks a subnet manager",
	"rdma-cm-module":        "the module rdma_ucm is not loaded",
	"runtime-config":        "the runtime's configuration has a mistake",
	"security-denials":      "SELinux or AppArmor denies it",
	"uverbs-module":         "the module ib_uverbs is not loaded",
}
