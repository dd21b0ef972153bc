// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/spec"
)

// registering registers memory with each HCA that could be opened. Where there is none whose driver is known, it locks memory instead.
func (v *verification) registering(held []heldHCA) {
	if v.elsewhere {
		v.add(checkRegister, unknown, "register %s: not tried: this container is not the target's, and has its own limits and devices", v.size)
		return
	}
	const spare = 16 << 20 // for the program itself
	if room, known := v.room(); known && room < uint64(v.size)+spare {
		v.add(checkLock, unknown, "register %s: not tried: the container may use only %s more memory, and would be killed; choose less with --lock", v.size, spec.Limit(room))
		if !v.mayLock() {
			v.fails(checkMemlock, causeMemlock, "memlock of this process: less than %s: %s", v.size, memlockRemedy)
		}
		return
	}
	tried := false
	for _, h := range held {
		if !h.opened {
			continue
		}
		driver := verbs.Driver(v.driver(h))
		if !verbs.Supported(driver) {
			v.add(checkRegister, unknown, "register %s with %s: not tried: verify cannot register memory with its driver (%s)", v.size, h.name(), orUnknown(string(driver)))
			continue
		}
		tried = v.registered(h, driver, v.register(h.file, driver, int(v.size))) || tried
	}
	if !tried {
		v.locked(v.lock(int(v.size)))
	}
}

// driver returns the driver of an HCA as libibverbs names its provider, "" where it is not known.
func (v *verification) driver(h heldHCA) string {
	if !h.known {
		return ""
	}
	return verbs.Provider(h.hca, attribute(filepath.Join(v.root, "sys/class/infiniband", h.hca.Name, "parent")))
}

// registered adds the fact about a registration. It reports whether that got as far as the memory.
func (v *verification) registered(h heldHCA, driver verbs.Driver, err error) bool {
	var failed *verbs.Error
	is := func(numbers ...error) bool {
		for _, number := range numbers {
			if errors.Is(err, number) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		v.add(checkRegister, good, "register %s with %s: done", v.size, h.name())
		return true
	case is(unix.ENOMEM) && v.Memlock != nil && !v.mayLock():
		v.fails(checkRegister, causeMemlock, "register %s with %s: %v: memlock is %s: %s", v.size, h.name(), err, v.Memlock.Soft, memlockRemedy)
		return true
	case is(unix.ENOMEM) && v.Memlock != nil && driver == verbs.SIW && v.Memlock.Soft < v.size:
		v.fails(checkRegister, causeMemlock, "register %s with %s: %v: memlock is %s, and older kernels do not count CAP_IPC_LOCK for Soft-iWARP: %s",
			v.size, h.name(), err, v.Memlock.Soft, memlockRemedy)
		return true
	case is(unix.ENOMEM) && errors.As(err, &failed):
		v.fails(checkRegister, causeMemory, "register %s with %s: %v, although memlock or CAP_IPC_LOCK allow it: the node has too little memory that can be pinned", v.size, h.name(), err)
		return true
	case is(unix.EAGAIN):
		v.fails(checkRegister, causeRDMACgroup, "register %s with %s: %v: the cgroup's rdma.max allows no more (hca_handle, hca_object), or the HCA is being reset", v.size, h.name(), err)
		return true
	case is(unix.EIO, unix.ENODEV, unix.ENXIO):
		v.fails(checkRegister, causeDevice, "register %s with %s: %v: the HCA is gone: recreate the pod", v.size, h.name(), err)
		return true
	}
	v.add(checkRegister, unknown, "register %s with %s: %v: its driver (%s) expects something else", v.size, h.name(), err, driver)
	return false
}

// locked adds the fact about locking memory.
func (v *verification) locked(err error) {
	refused := errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN)
	switch {
	case err == nil:
		v.add(checkLock, good, "lock %s, in place of registering it: done", v.size)
	case refused && !v.mayLock():
		v.fails(checkLock, causeMemlock, "lock %s, in place of registering it: %v: memlock is %s: %s", v.size, err, v.Memlock.Soft, memlockRemedy)
	case errors.Is(err, unix.EPERM): // memlock and the capability suffice
		v.add(checkLock, note, "lock %s: %v: a seccomp profile or a security module forbids mlock here, which does not matter to RDMA", v.size, err)
	case refused && v.Memlock != nil:
		v.fails(checkLock, causeMemory, "lock %s: %v, although memlock or CAP_IPC_LOCK allow it: the node has too little memory", v.size, err)
	default:
		v.fails(checkLock, causeMemory, "lock %s: %v", v.size, err)
	}
}
