// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/rdma-spec/rdma-spec/spec"
)

// memlock is what a configuration or an annotation says of RLIMIT_MEMLOCK.
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

// finite says that a process is held to a number of bytes.
func (m memlock) finite() bool { return m.memoryLimit || m.limit.Finite() }

// bytes gives the limit for a container with a memory limit in bytes, 0 for none; ok is false where it needs one.
func (m memlock) bytes(memoryLimit int64) (limit spec.Limit, ok bool) {
	if !m.memoryLimit {
		return m.limit, true
	}
	return spec.Limit(max(memoryLimit, 0)), memoryLimit > 0
}

// ipcLock is what a configuration says of CAP_IPC_LOCK.
type ipcLock string

const (
	ipcLockUnlessDropped ipcLock = "unless-dropped"
	ipcLockTrue          ipcLock = "true"
	ipcLockFalse         ipcLock = "false"
	ipcLockForce         ipcLock = "force"
)

func parseIPCLock(s Scalar) (ipcLock, error) {
	switch mode := ipcLock(s); mode {
	case ipcLockUnlessDropped, ipcLockTrue, ipcLockFalse, ipcLockForce:
		return mode, nil
	}
	return "", fmt.Errorf("%s is none of unless-dropped, true, false, force", quoted(string(s)))
}

// grant gives what an ipcLock means next to a memlock limit: the capability would void a finite one.
func (m ipcLock) grant(limit spec.Limit) spec.IPCLock {
	switch {
	case m == ipcLockForce:
		return spec.IPCLockYes
	case m == ipcLockFalse || limit.Finite(): // guard: ipc-lock
		return spec.IPCLockNo
	case m == ipcLockTrue:
		return spec.IPCLockYes
	default:
		return spec.IPCLockUnlessDropped
	}
}
