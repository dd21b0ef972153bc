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

// memoryChecks returns the checks of limits on registered memory other than memlock.
func memoryChecks() []doctor.Check {
	return []doctor.Check{{
		ID: "efa-pages", Family: "memory", Title: "Each EFA device can register all of the node's memory.",
		Impact: "An EFA device can register only a limited number of pages. Without huge pages, the limit is about 95 GB.",
		Reads:  []string{"proc/meminfo"}, Look: smallPages,
	}, {
		ID: "cma", Family: "memory", Title: "There is free memory outside CMA.",
		Impact: "Memory registration fails with ENOMEM although the node has free memory. Registered memory cannot stay " +
			"in the area for contiguous allocations (CMA).",
		Reads: []string{"proc/meminfo"}, Look: onlyCMA,
	}, {
		ID: "max-map-count", Family: "memory", Title: "vm.max_map_count is at least the kernel's default.",
		NoMessages: "programs report that mmap failed, although the node has free memory",
		Impact: "Some programs, such as those that use UCX, need a mapping for each registered buffer. When the " +
			"number of mappings reaches the limit, these programs fail.",
		Reads: []string{maxMapCount}, Look: fewMappings,
	}}
}

// meminfo returns the value of a line in /proc/meminfo, in KiB or as a number of pages.
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

// smallPages reports EFA nodes without huge pages. Only jobs that register much memory need huge pages.
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
			"The node has no huge pages. If a container registers more than 95 GB, reserve 10 GiB of the node's memory "+
				"for huge pages. To reserve the memory, run: echo vm.nr_hugepages=5128 > /etc/sysctl.d/90-efa.conf && "+
				"sysctl -p /etc/sysctl.d/90-efa.conf")}
	}
	return nil
}

// onlyCMA finds nodes whose free memory is in CMA.
func onlyCMA(v *doctor.View) []doctor.Finding {
	area, known := meminfo(v, "CmaFree")
	available, knownAvailable := meminfo(v, "MemAvailable")
	if !known || !knownAvailable {
		return doctor.Inapplicable("The kernel has no contiguous memory allocator (CMA).")
	}
	if total, known := meminfo(v, "CmaTotal"); known && area > total {
		return []doctor.Finding{doctor.Fault("", fmt.Sprintf("The kernel reports %d MiB of free memory in CMA, but CMA "+
			"has only %d MiB in total. The kernel counts ordinary memory as CMA.", area>>10, total>>10),
			"Add kho=off to the kernel's command line, and then drain and restart the node "+
				"(see https://github.com/NVIDIA/NV-Kernels/pull/590).")}
	}
	const gibibyte = 1 << 20 // KiB
	if outside := available - area; area > gibibyte && outside < gibibyte {
		return []doctor.Finding{doctor.Fault("", fmt.Sprintf("%d MiB is free in CMA, but only %d MiB is free outside CMA.",
			area>>10, max(outside, 0)>>10),
			"sync && echo 3 > /proc/sys/vm/drop_caches && echo 1 > /proc/sys/vm/compact_memory").Disruptive(
			"Programs must reread cached files from disk.", "free -h")}
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
