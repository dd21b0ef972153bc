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

// tryRegistering registers memory with each opened HCA. If no HCA has a supported driver, it locks memory instead.
func (v *verification) tryRegistering(held []heldHCA) {
	if v.elsewhere {
		v.add("register", doctor.Unknown,
			"register %s: skipped, because this container is not the target and has its own limits and devices", v.size)
		return
	}
	const spare = 16 << 20 // for the program itself
	if room, known := v.room(); known && room < uint64(v.size)+spare {
		v.add("lock", doctor.Unknown,
			"register %s: skipped so that the container, which is allowed only %s more memory, is not killed: "+
				"set --lock to a smaller size",
			v.size, spec.Limit(room))
		if !v.mayLock() {
			v.addFault("memlock", causeMemlock, "memlock of this process is less than %s: %s", v.size, memlockFix)
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
				"register %s with %s: skipped, because verify does not support the HCA's driver (%s)", v.size, h.name,
				cmp.Or(string(h.driver), "unknown"))
			continue
		}
		tried = v.addRegistration(h, v.register(h.file, h.driver, int(v.size))) || tried
	}
	if !tried {
		v.addLocking(v.lock(int(v.size)))
	}
}

// addRegistration adds the finding about a registration. It reports whether the registration reached the memory.
func (v *verification) addRegistration(h heldHCA, err error) bool {
	said := fmt.Sprintf("register %s with %s: %v", v.size, h.name, err)
	switch noMemory := errors.Is(err, unix.ENOMEM); {
	case err == nil:
		v.add("register", doctor.OK, "register %s with %s: done", v.size, h.name)
	case noMemory && !v.mayLock():
		v.addFault("register", causeMemlock, "%s, because memlock is %s: %s", said, v.own.Memlock.Soft, memlockFix)
	case noMemory && v.own != nil && h.driver == verbs.SIW && v.own.Memlock.Soft < v.size:
		v.addFault("register", causeMemlock,
			"%s, because memlock is %s and older kernels ignore CAP_IPC_LOCK for Soft-iWARP: %s",
			said, v.own.Memlock.Soft, memlockFix)
	case noMemory:
		v.addFault("register", causeMemory,
			"%s, although memlock or CAP_IPC_LOCK allows the registration: the node has too little pinnable memory, "+
				"or the HCA has no memory keys left (in this case, the node's kernel log contains CREATE_MKEY)",
			said)
	case errors.Is(err, unix.EAGAIN):
		v.addFault("register", causeRDMACgroup,
			"%s: the cgroup has reached its limit for hca_handle or hca_object in rdma.max, or the HCA is being reset", said)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		v.addFault("register", causeDevice, "%s: the HCA is gone: recreate the pod", said)
	default:
		v.add("register", doctor.Unknown, "%s: the HCA's driver (%s) expects a different request", said, h.driver)
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
		v.add("lock", doctor.OK, "lock %s (instead of registering memory): succeeded", v.size)
	case refused && !v.mayLock():
		v.addFault("lock", causeMemlock, "lock %s (instead of registering memory): %v, because memlock is %s: %s",
			v.size, err, v.own.Memlock.Soft, memlockFix)
	case errors.Is(err, unix.EPERM): // memlock and the capability suffice
		v.add("lock", note,
			"%s: a seccomp profile or a security module forbids mlock in this container; RDMA is not affected", said)
	case refused && v.own != nil:
		v.addFault("lock", causeMemory,
			"%s, although memlock or CAP_IPC_LOCK allows locking: the node has too little memory", said)
	default:
		v.addFault("lock", causeMemory, "%s", said)
	}
}
