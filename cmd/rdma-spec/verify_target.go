// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec"
)

// targetLimit is what another process may lock.
type targetLimit struct {
	PID     int          `json:"pid"`
	Name    string       `json:"name"`
	Memlock *spec.Rlimit `json:"memlock"`
	IPCLock bool         `json:"ipcLock"`
	// OtherContainer is true where the process belongs to another container than the program.
	OtherContainer bool `json:"otherContainer"`
}

// target reads the limits of the process that the user names, or of process 1: that is the container's first process, or in an ephemeral
// container the first one of the target's. There is no target where it is the program itself, the pod's pause, or the node's init.
func (v *verification) target(pid int) error {
	named := pid != 0
	if !named {
		pid = 1
		if v.self == 1 || v.procText(2, "comm") == "kthreadd" { // only the node's own PID namespace has kernel threads
			return nil
		}
	}
	name := v.procText(pid, "comm")
	if !named && name == "pause" {
		v.add(checkMemlock, unknown, "memlock of the program: process 1 is the pod's pause (shareProcessNamespace: true): name the program's process with --pid")
		return nil
	}
	held, err := v.process(pid)
	switch {
	case err != nil && named:
		return fmt.Errorf("process %d: %w", pid, err)
	case err != nil:
		v.add(checkMemlock, unknown, "memlock of process 1: cannot be read: %v", err)
		return nil
	}
	v.Target = &targetLimit{PID: pid, Name: name, Memlock: &held.Memlock, IPCLock: counts(held), OtherContainer: v.otherContainer(pid)}
	who := fmt.Sprintf("process %d (%s)", pid, name)
	if v.Target.OtherContainer {
		v.elsewhere = true
		who += " in another container"
		v.image = filepath.Join(v.root, "proc", strconv.Itoa(pid), "root")
	}
	v.showLimits(who, held)
	if !v.Target.IPCLock && held.Memlock.Soft < v.size {
		v.fails(checkMemlock, causeMemlock, "memlock of %s: less than %s: %s", who, v.size, memlockRemedy)
	}
	return nil
}

// otherContainer reports whether a process is in another cgroup than the program, as those of other containers are.
func (v *verification) otherContainer(pid int) bool {
	own, other := v.procText(v.self, "cgroup"), v.procText(pid, "cgroup")
	return own != "" && other != "" && own != other
}

// procText returns the text of a process's file, "" where there is none.
func (v *verification) procText(pid int, file string) string {
	text, _ := os.ReadFile(filepath.Join(v.root, "proc", strconv.Itoa(pid), file))
	return strings.TrimSpace(string(text))
}
