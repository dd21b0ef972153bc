// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// memlock is what a configuration or an annotation says of RLIMIT_MEMLOCK. The zero value leaves it unchanged.
type memlock struct {
	limit       spec.Limit // where memoryLimit is false
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

// parseRuleMemlock also reads what a rule alone may say.
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

// unlimited reports whether a process is not held to a number of bytes.
func (m memlock) unlimited() bool { return !m.memoryLimit && m.limit == spec.Unlimited }

// ipcLock is what a configuration says of CAP_IPC_LOCK. What gives less comes first.
type ipcLock int

const (
	ipcLockFalse  ipcLock = iota
	ipcLockTrue           // unless all capabilities were dropped
	ipcLockAlways         // also then, and beside a finite memlock
)

func parseIPCLock(s Scalar) (ipcLock, error) {
	switch s {
	case "false":
		return ipcLockFalse, nil
	case "true":
		return ipcLockTrue, nil
	case "always":
		return ipcLockAlways, nil
	}
	return 0, fmt.Errorf("%s is none of true, false, always", quoted(string(s)))
}

// grant gives what an ipcLock means next to a memlock limit: the capability would void any that is not unlimited.
func (m ipcLock) grant(limit spec.Limit) spec.IPCLock {
	switch {
	case m == ipcLockAlways:
		return spec.IPCLockYes
	case m == ipcLockFalse || limit != spec.Unlimited: // guard: ipc-lock
		return spec.IPCLockNo
	default:
		return spec.IPCLockUnlessDropped
	}
}
