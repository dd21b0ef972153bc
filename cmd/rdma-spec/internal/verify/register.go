// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/spec"
)

// tryRegistering registers memory with each HCA that could be opened. Where there is none whose driver is known, it
// locks memory instead.
func (v *verification) tryRegistering(held []heldHCA) {
	if v.elsewhere {
		v.add("register", doctor.Unknown,
			"register %s: skipped: this container is not the target, and has its own limits and devices", v.size)
		return
	}
	const spare = 16 << 20 // for the program itself
	if room, known := v.room(); known && room < uint64(v.size)+spare {
		v.add("lock", doctor.Unknown,
			"register %s: skipped: the container is allowed only %s more memory, and would be killed: set a lower --lock",
			v.size, spec.Limit(room))
		if !v.mayLock() {
			v.addFault("memlock", causeMemlock, "memlock of this process: less than %s: %s", v.size, memlockFix)
		}
		return
	}
	tried := false
	for _, h := range held {
		if !h.opened {
			continue
		}
		if !verbs.Supported(h.driver) {
			v.add("register", doctor.Unknown,
				"register %s with %s: skipped: verify does not support its driver (%s)", v.size, h.name,
				cmp.Or(string(h.driver), "unknown"))
			continue
		}
		tried = v.addRegistration(h, v.register(h.file, h.driver, int(v.size))) || tried
	}
	if !tried {
		v.addLocking(v.lock(int(v.size)))
	}
}

// addRegistration adds the finding about a registration. It reports whether that got as far as the memory.
func (v *verification) addRegistration(h heldHCA, err error) bool {
	said := fmt.Sprintf("register %s with %s: %v", v.size, h.name, err)
	switch noMemory := errors.Is(err, unix.ENOMEM); {
	case err == nil:
		v.add("register", doctor.OK, "register %s with %s: done", v.size, h.name)
	case noMemory && !v.mayLock():
		v.addFault("register", causeMemlock, "%s: memlock is %s: %s", said, v.own.Memlock.Soft, memlockFix)
	case noMemory && v.own != nil && h.driver == verbs.SIW && v.own.Memlock.Soft < v.size:
		v.addFault("register", causeMemlock, "%s: memlock is %s, and older kernels ignore CAP_IPC_LOCK for Soft-iWARP: %s",
			said, v.own.Memlock.Soft, memlockFix)
	case noMemory:
		v.addFault("register", causeMemory,
			"%s, although memlock or CAP_IPC_LOCK allows it: either the node has too little memory that can be pinned, or "+
				"the HCA has no memory keys left (in the latter case, the node's kernel log contains CREATE_MKEY)", said)
	case errors.Is(err, unix.EAGAIN):
		v.addFault("register", causeRDMACgroup,
			"%s: the cgroup has reached its limit for hca_handle or hca_object in rdma.max, or the HCA is being reset", said)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		v.addFault("register", causeDevice, "%s: the HCA is gone: recreate the pod", said)
	default:
		v.add("register", doctor.Unknown, "%s: its driver (%s) expects a different request", said, h.driver)
		return false
	}
	return true
}

// addLocking adds the finding about locking memory.
func (v *verification) addLocking(err error) {
	refused := errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN)
	said := fmt.Sprintf("lock %s: %v", v.size, err)
	switch {
	case err == nil:
		v.add("lock", doctor.OK, "lock %s instead of registering it: succeeded", v.size)
	case refused && !v.mayLock():
		v.addFault("lock", causeMemlock, "lock %s instead of registering it: %v: memlock is %s: %s", v.size, err,
			v.own.Memlock.Soft, memlockFix)
	case errors.Is(err, unix.EPERM): // memlock and the capability suffice
		v.add("lock", note,
			"%s: a seccomp profile or a security module forbids mlock here, which does not affect RDMA", said)
	case refused && v.own != nil:
		v.addFault("lock", causeMemory,
			"%s, although memlock or CAP_IPC_LOCK allows it: the node has too little memory", said)
	default:
		v.addFault("lock", causeMemory, "%s", said)
	}
}
