// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// The verdicts on facts.
const (
	good   = "ok"
	absent = "-"    // not there, and not needed
	bad    = "FAIL" // RDMA would fail
)

// fact is one line of verify.
type fact struct{ verdict, text string }

// verification tries a container.
type verification struct {
	container
	held  limits.Process
	facts []fact
	fails bool
}

func (v *verification) add(verdict, format string, args ...any) {
	v.facts = append(v.facts, fact{verdict, fmt.Sprintf(format, args...)})
	v.fails = v.fails || verdict == bad
}

// limits says what the process may lock.
func (v *verification) limits() {
	var err error
	v.held, err = v.process()
	if err != nil {
		v.add(absent, "memlock: cannot be read: %v", err)
		return
	}
	verdict := absent
	if v.held.Memlock.Soft == spec.Unlimited {
		verdict = good
	}
	v.add(verdict, "memlock: %s (hard: %s)", v.held.Memlock.Soft, v.held.Memlock.Hard)
	switch {
	case v.held.IPCLock && v.held.UserNamespace:
		v.add(absent, "CAP_IPC_LOCK: effective, but of no use in a user namespace (hostUsers: false)")
	case v.held.IPCLock:
		v.add(good, "CAP_IPC_LOCK: effective")
	default:
		v.add(absent, "CAP_IPC_LOCK: not effective")
	}
}

// devices opens the devices that RDMA programs use.
func (v *verification) devices() {
	folder := filepath.Join(v.root, "dev/infiniband")
	found, err := filepath.Glob(filepath.Join(folder, "uverbs*"))
	if err != nil || len(found) == 0 {
		v.add(bad, "verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource, or where the policy lists the namespace, annotate the pod with %s: \"true\"",
			policy.AnnotationKey)
		return
	}
	node, err := hca.Scan(v.root)
	if err != nil {
		node = &hca.Node{}
	}
	slices.SortStableFunc(found, func(a, b string) int { return len(a) - len(b) })
	active := false
	for _, file := range found {
		device := path.Join("/dev/infiniband", path.Base(file))
		owner, known := ownerOf(node, device)
		switch err := v.open(file); {
		case err != nil:
			v.add(bad, "%s: %s", device, openRemedy(err))
		case known:
			v.add(good, "%s: opened: %s, %s", device, owner.Name, portsOf(owner))
			active = active || owner.Active()
		default:
			v.add(good, "%s: opened", device)
			active = true // as far as can be told
		}
	}
	if !active && !v.fails {
		v.add(bad, "ports: none is ACTIVE: see the cable, the switch and, on InfiniBand, the subnet manager")
	}
	switch err := v.open(filepath.Join(folder, "rdma_cm")); {
	case errors.Is(err, unix.ENOENT):
		v.add(absent, "/dev/infiniband/rdma_cm: not there: programs that connect through RDMA_CM need it")
	case err != nil:
		v.add(bad, "/dev/infiniband/rdma_cm: %s", openRemedy(err))
	default:
		v.add(good, "/dev/infiniband/rdma_cm: opened")
	}
}

func ownerOf(node *hca.Node, device string) (hca.HCA, bool) {
	for _, h := range node.HCAs {
		if verbs, ok := h.Verbs(); ok && verbs.Path == device {
			return h, true
		}
	}
	return hca.HCA{}, false
}

// portsOf says how an HCA's ports are: "port 1 ACTIVE, port 2 DOWN".
func portsOf(h hca.HCA) string {
	var ports []string
	for _, p := range h.Ports {
		ports = append(ports, fmt.Sprintf("port %d %s", p.Number, orUnknown(p.State)))
	}
	if len(ports) == 0 {
		return "no ports"
	}
	return strings.Join(ports, ", ")
}

// openRemedy says why a device cannot be opened, and what to do.
func openRemedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return "not permitted by the container's device cgroup: it was mounted, not given; take it from a device plugin or the annotation"
	case errors.Is(err, unix.EACCES):
		return "its file permissions do not let this user open it: it should have mode 0666 on the node"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return "the node has no such device any more: recreate the pod"
	}
	return err.Error()
}

// locking locks memory for real.
func (v *verification) locking(size spec.Limit) {
	const spare = 16 << 20 // for the program itself
	if room, known := v.room(); known && room < uint64(size)+spare {
		v.add(absent, "lock %s: not tried: the container may use only %s of memory more, and would be killed; choose less with --lock", size, spec.Limit(room))
		if v.held.Memlock.Soft < size && (!v.held.IPCLock || v.held.UserNamespace) {
			v.add(bad, "memlock: less than %s: %s", size, memlockRemedy)
		}
		return
	}
	err := v.lock(int(size))
	switch {
	case err == nil:
		v.add(good, "lock %s: done", size)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EPERM), errors.Is(err, unix.EAGAIN):
		if v.held.Memlock.Soft >= size {
			v.add(bad, "lock %s: %v, although memlock is %s: the node has too little memory", size, err, v.held.Memlock.Soft)
			return
		}
		v.add(bad, "lock %s: %v: memlock is %s: %s", size, err, v.held.Memlock.Soft, memlockRemedy)
	default:
		v.add(bad, "lock %s: %v", size, err)
	}
}

// memlockRemedy says how a container gets a memlock that suffices. A process cannot raise its own.
const memlockRemedy = "see that nri-rdma runs on the node and counts this container as one for RDMA (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node"
