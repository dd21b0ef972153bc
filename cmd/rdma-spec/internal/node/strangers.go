// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/limits"
)

// strangers returns one process from each network namespace that belongs neither to the node nor to a listed container.
// Such namespaces come from Docker, virtual machines, or ip netns. strangers omits namespaces that contain only lo,
// because systemd services with PrivateNetwork= have such namespaces.
func strangers(root string, listed []Listed) (found []int) {
	network := func(pid int) string {
		namespace, _ := os.Readlink(process.Process{PID: pid}.File(root, "ns/net")) // the process has exited
		return namespace
	}
	seen := []string{"", network(1)}
	for _, l := range listed {
		seen = append(seen, network(l.PID))
	}
	pids, _ := limits.New(root).PIDs() // without proc, there are none
	for _, pid := range pids {
		if namespace := network(pid); !slices.Contains(seen, namespace) {
			seen = append(seen, namespace)
			if hasInterfaces(root, pid) {
				found = append(found, pid)
			}
		}
	}
	return found
}

// hasInterfaces reports whether the network namespace of a process has an interface other than lo.
func hasInterfaces(root string, pid int) bool {
	text, _ := os.ReadFile(process.Process{PID: pid}.File(root, "net/dev")) // the process has exited
	for line := range strings.Lines(string(text)) {
		if name, _, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) != "lo" {
			return true
		}
	}
	return false
}
