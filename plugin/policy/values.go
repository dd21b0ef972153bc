// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// memlock is RLIMIT_MEMLOCK in a configuration or an annotation. The zero value leaves the limit unchanged.
type memlock struct {
	limit       spec.Limit // used if memoryLimit is false
	memoryLimit bool       // the container's own memory limit
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

// parseRuleMemlock also accepts the values that only a rule can have.
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

// ipcLock is CAP_IPC_LOCK in a configuration. Values that grant less come first.
type ipcLock int

const (
	ipcLockFalse     ipcLock = iota
	ipcLockRequested         // if the pod's spec adds it
	ipcLockTrue              // unless all capabilities were dropped
	ipcLockAlways            // even then, and with a finite memlock
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

// grant returns what an ipcLock means together with a memlock limit: the capability overrides any finite limit.
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
