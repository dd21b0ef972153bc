// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// memoryChecks are about limits of registered memory that are not memlock.
func memoryChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "efa-pages", Family: "memory", Title: "EFA can register all of the node's memory.",
		Impact: "EFA can register only a limited number of pages. Without huge pages, these hold about 95 GB.",
		Reads:  []string{"proc/meminfo"}, Look: smallPages,
	}, {
		ID: "cma", Family: "memory", Title: "There is free memory outside CMA.",
		Impact: "Registration fails with ENOMEM although memory is free, because registered memory cannot stay in the " +
			"area for contiguous allocations (CMA).",
		Reads: []string{"proc/meminfo"}, Look: onlyCMA,
	}, {
		ID: "max-map-count", Family: "memory", Title: "vm.max_map_count is at least the kernel's default.",
		NoMessages: "programs report that mmap failed, although memory is free",
		Impact:     "Some programs, such as those that use UCX, map each buffer that they register, and fail at the limit.",
		Reads:      []string{maxMapCount}, Look: fewMappings,
	}}
}

// meminfo returns a line of /proc/meminfo: KiB, or a number of pages.
func meminfo(v *doctor.View, name string) (int64, bool) {
	text, err := v.Read("proc/meminfo")
	if err != nil {
		return 0, false
	}
	var n int64
	_, after, _ := strings.Cut("\n"+text, "\n"+name+":")
	_, err = fmt.Sscan(after, &n)
	return n, err == nil
}

// smallPages tells where EFA has no huge pages. Whether they are needed depends on how much is registered.
func smallPages(v *doctor.View) []doctor.Finding {
	node, err := v.HCAs()
	if err != nil || !slices.ContainsFunc(node.HCAs, func(h hca.HCA) bool { return h.Purpose() == hca.PurposeEFA }) {
		return doctor.Inapplicable("The node has no EFA.")
	}
	pages, known := meminfo(v, "HugePages_Total")
	total, knownTotal := meminfo(v, "MemTotal")
	const limit = 95 << 20 // KiB
	switch {
	case !known || !knownTotal:
		return []doctor.Finding{doctor.Unsure("", "/proc/meminfo does not report the number of huge pages.")}
	case pages == 0 && total > limit:
		return []doctor.Finding{doctor.Unsure("",
			"There are no huge pages. If a container registers more than 95 GB, run: echo vm.nr_hugepages=5128 > "+
				"/etc/sysctl.d/90-efa.conf && sysctl -p /etc/sysctl.d/90-efa.conf. This reserves 10 GiB of the node's memory "+
				"as huge pages.")}
	}
	return nil
}

// onlyCMA finds nodes whose free memory is in CMA.
func onlyCMA(v *doctor.View) []doctor.Finding {
	area, known := meminfo(v, "CmaFree")
	available, knownAvailable := meminfo(v, "MemAvailable")
	if !known || !knownAvailable {
		return doctor.Inapplicable("The kernel has no CMA.")
	}
	if total, known := meminfo(v, "CmaTotal"); known && area > total {
		return []doctor.Finding{doctor.Fault("", fmt.Sprintf("The kernel reports %d MiB free in CMA, but CMA has only %d "+
			"MiB. It counts ordinary memory as CMA.", area>>10, total>>10), "Add kho=off to the kernel's command line, "+
			"drain the node, and restart it (https://github.com/NVIDIA/NV-Kernels/pull/590).")}
	}
	const gibibyte = 1 << 20 // KiB
	if outside := available - area; area > gibibyte && outside < gibibyte {
		return []doctor.Finding{doctor.Fault("", fmt.Sprintf("%d MiB are free in CMA, but only %d MiB elsewhere.",
			area>>10, max(outside, 0)>>10),
			"sync && echo 3 > /proc/sys/vm/drop_caches && echo 1 > /proc/sys/vm/compact_memory").Disruptive(
			"programs must then reread cached files from disk", "free -h")}
	}
	return nil
}

const maxMapCount = "proc/sys/vm/max_map_count"

// fewMappings finds limits below the kernel's default, which large jobs exceed.
func fewMappings(v *doctor.View) []doctor.Finding {
	const usual = 65530
	n, err := strconv.Atoi(doctor.Attribute(v, maxMapCount))
	if err != nil || n >= usual {
		return nil
	}
	return []doctor.Finding{doctor.Fault("", fmt.Sprintf("vm.max_map_count is %d. The kernel's default is %d.", n, usual),
		"sysctl -w vm.max_map_count=262144 && echo vm.max_map_count=262144 > /etc/sysctl.d/90-rdma.conf").Command()}
}
