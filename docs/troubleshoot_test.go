// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// TestReadmeIsShort checks that README.md keeps to what a new reader needs.
func TestReadmeIsShort(t *testing.T) {
	const most = 170
	if lines := strings.Count(repository.Read(t, "README.md"), "\n"); lines > most {
		t.Errorf("README.md has %d lines, want %d at most", lines, most)
	}
}

// searched are what people search for, as public issues have it, with the first cause that the page has to name, and
// the check that explains it: "" where the cause is on another node.
var searched = []struct{ message, cause, check string }{
	{"Couldn't allocate MR", "memlock", "container-memlock"},
	{"Couldn't register MR", "memlock", "container-memlock"},
	{"ibv_create_cq() failed: Cannot allocate memory", "memlock", "container-memlock"},
	{"ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memlock", "container-memlock"},
	{"Call to ibv_reg_mr failed with error Cannot allocate memory", "memlock", "container-memlock"},
	{"Call to ibv_create_cq failed with error Cannot allocate memory", "memlock", "container-memlock"},
	{"Please set max locked memory (ulimit -l) to 'unlimited'", "memlock", "container-memlock"},
	{"Libfabric error: (-12) Cannot allocate memory", "memlock", "container-memlock"},
	{"(openib) BTL failed to initialize", "memlock", "container-memlock"},
	{"There was an error initializing an OpenFabrics device", "memlock", "container-memlock"},
	{"unhandled system error", "the line with `ibv_` above it", "container-memlock"},
	{"ibv_reg_mr_iova2 failed with error Bad address", "nvidia_peermem", "gpu-direct"},
	{"ibv_reg_mr failed: Bad address", "nvidia_peermem", "gpu-direct"},
	{"GPU Direct RDMA Disabled for HCA", "nvidia_peermem", "gpu-direct"},
	{"could not insert 'nvidia_peermem': Invalid argument", "built for other RDMA modules", "module-symbols"},
	{"Unknown symbol ib_register_peer_memory_client", "built for other RDMA modules", "module-symbols"},
	{"can't read ABI version from /sys/class/infiniband_mad", "no verbs or umad device", "class-devices"},
	// seen in uccl-project/uccl#301
	{"libibverbs: Warning: couldn't load driver", "no fault", "container-provider"},
	{"neither nv_peer_mem, or nvidia_peermem detected", "nvidia_peermem", "gpu-direct"},
	{"ibv_reg_dmabuf_mr", "nvidia_peermem", "gpu-direct"},
	{"disagrees about version of symbol", "built for other RDMA modules", "module-symbols"},
	{"vendor err 81", "ACS", "acs"},
	{"Port number 1 state is Down", "port is down", "port-active"},
	{"Couldn't set the link layer", "port that perftest uses is down", "port-active"},
	{"`Connection timed out`", "port of one of the two nodes is down", "port-active"},
	{"`Got async event`", "the port or the HCA had an error", "port-active"},
	{"local access violation", "no fault of the node", ""},
	{"failed to modify to RTR", "no interface of the HCA", "container-netdev"},
	{"UD mlx5 connect", "no interface of the HCA", "container-netdev"},
	{"NIXL_ERR_BACKEND", "the line of UCX above", "container-environment"},
	{"Couldn't get device attributes", "memlock", "container-memlock"},
	{"Failed to create QP", "memlock", "container-memlock"},
	{"Failed to register memory", "memlock", "container-memlock"},
	{"cannot create cq", "memlock", "container-memlock"},
	{"Failed to create a completion queue", "memlock", "container-memlock"},
	{"RDMA_CM_EVENT_ADDR_ERROR", "no interface of the HCA", "container-netdev"},
	{"crun: setrlimit", "may not raise", "runtime-rlimits"},
	{"mlx5dv_get_data_direct_sysfs_path", "older than its NCCL", ""},
	{"ttrpc: closed", "did not answer in time", "nri-timeouts"},
	{"failed to handle event 4", "did not answer in time", "nri-timeouts"},
	{`no runtime for "rdma" is configured`, "not in the runtime's configuration", "configuration-kept"},
	{"security context constraint", "no capability of its own", ""},
	{"Connection closed by remote peer", "another rank ended", "container-memlock"},
	{"Segmentation fault", "memlock", "container-memlock"},
	{"Couldn't get context for the device", "does not hold", "container-devices"},
	{"Unable to find the Infiniband/RoCE device", "holds no HCA", "container-hca"},
	{"Couldn't create IB resources", "memlock", "container-memlock"},
	{"ibdev2netdev", "no tools of MLNX_OFED", ""},
	{"RLIMIT_MEMLOCK is 65536 bytes", "memlock", "container-memlock"},
	{"VF GUID is not valid", "zero GUID", "guid-valid"},
	{"incorrect RDMA subsystem network namespace", "namespace mode", "netns-mode"},
	{"Failed to query GID", "no interface of the HCA", "container-netdev"},
	{"No data available", "no interface of the HCA", "container-netdev"},
	{"rdma_create_ep: No such device", "no interface of the HCA", "container-netdev"},
	{"Network is unreachable", "no interface of the HCA", "container-netdev"},
	{"vendor err 129", "GID index", "container-gid-index"},
	{"with error 12", "GID index", "container-gid-index"},
	{"Transport retry count exceeded", "GID index", "container-gid-index"},
	{"Failed to modify QP", "GID index", "container-gid-index"},
	{"__ib_cache_gid_add: unable to add gid", "no GID left", "gids-free"},
	{"IBV_WC_LOC_LEN_ERR", "MTU differs", "mtu-same"},
	{"lstat /dev/infiniband/", "no verbs or umad device", "class-devices"},
	{`RDMA device "rdma_cm" not found`, "rdma_ucm is not loaded", "rdma-cm-module"},
	{`RDMA device "issm" not found`, "network card without RDMA", "hca-present"},
	{"Insufficient rdma/hca_shared_devices_a", "device plugin offers no device", "kubelet-allocatable"},
	{"Failed loading kernel module mlx5_ib", "no RDMA driver", "hca-driver"},
	{"driver is in use", "other modules use", "modules-of-one-build"},
	{"does not support the kernel ABI", "provider", "container-provider"},
	{"No IB devices found", "provider", "container-provider"},
	{"Failed to open libibverbs", "lacks libibverbs", "container-provider"},
	{"ibv_open_device failed", "does not hold", "container-devices"},
	{"Using network Socket", "does not hold", "container-devices"},
	{"IB device mlx5_0 not found", "does not hold", "container-devices"},
	{"network device 'mlx5_0:1' is not available", "does not hold", "container-devices"},
	{"no usable transports/devices", "does not hold", "container-devices"},
	{"Did not detect devices", "holds no HCA", "container-hca"},
	{"fi_getinfo: -61", "hostPath", "container-hostpath"},
	{"fi_mr_reg", "near 95 GB", "efa-pages"},
	{"CREATE_MKEY", "had an error", "hca-errors"},
	{"unknown service runtime.v1.RuntimeService", "CRI plugin did not start", "cri-serves"},
	{"nri.sock: no such file", "NRI is off", "nri-socket"},
	{"both tried to set", "two NRI plugins", "nri-rivals"},
	{"Too many open files", "1024 files", "container-files"},
	{"unresolvable CDI devices", "CDI file", "cdi-files"},
	{"Couldn't read remote address", "the other side ended", ""},
	{"Unable to read to socket/rdma_cm", "the other side ended", ""},
	{"Failed to exchange data", "the other side ended", ""},
}

// TestSearchedWords checks that each message has one line in docs/troubleshoot.md, which names the first cause and
// leads to its section first, and that no other page has a table with the message.
func TestSearchedWords(t *testing.T) {
	rows := map[string][]string{}
	for _, file := range texts(t) {
		for line := range strings.Lines(repository.Read(t, file)) {
			if strings.HasPrefix(line, "| `") {
				rows[file] = append(rows[file], line)
			}
		}
	}
	section := regexp.MustCompile(`\]\(faults/([a-z0-9-]+)\.md\)`)
	for _, s := range searched {
		var found []string
		for file, lines := range rows {
			for _, line := range lines {
				if cells := strings.Split(line, " | "); !strings.Contains(cells[0], s.message) {
					continue
				} else if file == "docs/troubleshoot.md" {
					found = append(found, line)
				} else {
					t.Errorf("%s has %q as well: link to docs/troubleshoot.md", file, s.message)
				}
			}
		}
		if len(found) == 0 {
			t.Errorf("nobody finds %q", s.message)
		}
		for _, line := range found {
			cause := strings.Split(line, " | ")[1]
			if first := append(section.FindStringSubmatch(line), "", "")[1]; first != s.check {
				t.Errorf("%q leads to %q, want %q", s.message, first, s.check)
			}
			// A message that is part of others may have causes of its own.
			if len(found) == 1 && !strings.Contains(cause, s.cause) {
				t.Errorf("%q has the cause %q, want %q", s.message, cause, s.cause)
			}
		}
	}
}
