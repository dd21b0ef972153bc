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

// strangers returns a process of each network namespace that is neither the node's nor that of a listed container: of
// Docker, of a virtual machine, or of ip netns exec. Namespaces with lo alone are left out: services of systemd have
// such (PrivateNetwork=).
func strangers(root string, listed []Listed) (found []int) {
	network := func(pid int) string {
		namespace, _ := os.Readlink(process.Process{PID: pid}.File(root, "ns/net")) // it has ended
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

// hasInterfaces reports whether the network namespace of a process has more than lo.
func hasInterfaces(root string, pid int) bool {
	text, _ := os.ReadFile(process.Process{PID: pid}.File(root, "net/dev")) // it has ended
	for line := range strings.Lines(string(text)) {
		if name, _, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) != "lo" {
			return true
		}
	}
	return false
}
