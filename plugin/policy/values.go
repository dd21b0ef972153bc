// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// memlock is a memlock in a configuration or an annotation. The zero value leaves the limit unchanged.
type memlock struct {
	limit       spec.Limit // used if memoryLimit is false
	memoryLimit bool       // the memlock is the container's memory limit
}

const memoryLimitWord = "memory-limit"

func parseMemlock(s Scalar) (memlock, error) {
	if s == memoryLimitWord {
		return memlock{memoryLimit: true}, nil
	}
	limit, err := spec.ParseLimit(string(s))
	if err != nil {
		return memlock{}, fmt.Errorf("%w, or %s", err, memoryLimitWord)
	}
	return memlock{limit: limit}, nil
}

// parseRuleMemlock accepts the values of parseMemlock, and the value "unchanged", which only a rule can have.
func parseRuleMemlock(s Scalar) (memlock, error) {
	if s == "unchanged" {
		return memlock{}, nil
	}
	m, err := parseMemlock(s)
	if err != nil {
		err = fmt.Errorf("%w, or unchanged", err)
	}
	return m, err
}

// unlimited reports whether a memlock is unlimited.
func (m memlock) unlimited() bool { return !m.memoryLimit && m.limit == spec.Unlimited }

// ipcLock is the value of ipcLock in a configuration. Lower values grant less.
type ipcLock int

const (
	ipcLockFalse     ipcLock = iota
	ipcLockRequested         // grants IPC_LOCK if the pod's spec adds it
	ipcLockTrue              // grants IPC_LOCK unless all capabilities were dropped
	ipcLockAlways            // grants IPC_LOCK even if all capabilities were dropped or memlock is finite
)

func parseIPCLock(s Scalar) (ipcLock, error) {
	switch s {
	case "false":
		return ipcLockFalse, nil
	case "requested":
		return ipcLockRequested, nil
	case "true":
		return ipcLockTrue, nil
	case "always":
		return ipcLockAlways, nil
	}
	return 0, fmt.Errorf("%s is not one of true, false, requested, always", quoted(string(s)))
}

// grant returns the grant of CAP_IPC_LOCK together with a memlock limit. Only the value "always" grants the capability
// together with a finite limit, because the capability overrides the limit.
func (m ipcLock) grant(limit spec.Limit) spec.IPCLock {
	switch {
	case m == ipcLockAlways:
		return spec.IPCLockYes
	case m == ipcLockFalse || limit != spec.Unlimited: // guard: ipc-lock
		return spec.IPCLockNo
	case m == ipcLockRequested: // guard: ipc-lock-requested
		return spec.IPCLockIfRequested
	default:
		return spec.IPCLockUnlessDropped
	}
}
