// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
)

// readTarget reads the limits of the process in --pid, or of process 1. Process 1 is the container's first process or,
// in an ephemeral container, the target's first process. If process 1 is the program itself, the pod's pause process,
// or the node's init, there is no target.
func (v *verification) readTarget(pid int) error {
	named := pid != 0
	if !named {
		pid = 1
		// Only the node's own PID namespace has kernel threads.
		if v.self == 1 || v.read(processFile(2, "comm")) == "kthreadd" {
			return nil
		}
	}
	name := v.read(processFile(pid, "comm"))
	if !named && name == "pause" {
		v.add("memlock", doctor.Unknown,
			"memlock of the program: process 1 is the pause process, because the pod sets shareProcessNamespace: set "+
				"--pid to the ID of the program's process")
		return nil
	}
	held, err := v.process(pid)
	switch {
	case err != nil && named:
		return fmt.Errorf("process %d: %w", pid, err)
	case err != nil:
		v.add("memlock", doctor.Unknown, "memlock of process 1: cannot read the limit: %v", err)
		return nil
	}
	v.target = pid
	who := fmt.Sprintf("process %d (%s)", pid, name)
	// Other containers are in other cgroups.
	own := v.read(processFile(v.self, "cgroup"))
	other := v.read(processFile(pid, "cgroup"))
	if own != "" && other != "" && own != other {
		v.elsewhere = true
		who += " in another container"
	}
	v.showLimits(who, held)
	if !v.mayRegister(held) {
		v.addFault("memlock", causeMemlock, "memlock of %s is less than %s: %s", who, v.size, memlockFix)
	}
	return nil
}
