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

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// verdict says what a fact means for RDMA.
type verdict string

const (
	good   verdict = "ok"
	absent verdict = "absent" // not there, and not needed
	bad    verdict = "fail"   // RDMA would fail
)

// shown is how lines begin.
var shown = map[verdict]string{good: "ok", absent: "-", bad: "FAIL"}

// fact is one line of verify.
type fact struct {
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
}

// verified is the result of verify.
type verified struct {
	APIVersion string       `json:"apiVersion"`
	Memlock    *spec.Rlimit `json:"memlock,omitempty"`
	IPCLock    bool         `json:"ipcLock"` // effective, and not in a user namespace of its own
	Fails      bool         `json:"fails"`
	Facts      []fact       `json:"facts"`
}

// verification tries a container.
type verification struct {
	container
	verified
	node *hca.Node
}

func (v *verification) add(is verdict, format string, args ...any) {
	v.Facts = append(v.Facts, fact{is, fmt.Sprintf(format, args...)})
	v.Fails = v.Fails || is == bad
}

// limits reads what the process may lock.
func (v *verification) limits() {
	held, err := v.process()
	if err != nil {
		v.add(absent, "memlock: cannot be read: %v", err)
		return
	}
	v.Memlock, v.IPCLock = &held.Memlock, held.IPCLock && !held.UserNamespace
	is := absent
	if held.Memlock.Soft == spec.Unlimited {
		is = good
	}
	v.add(is, "memlock: %s (hard: %s)", held.Memlock.Soft, held.Memlock.Hard)
	switch {
	case held.IPCLock && held.UserNamespace:
		v.add(absent, "CAP_IPC_LOCK: effective, but the kernel does not count it in a user namespace (hostUsers: false)")
	case held.IPCLock:
		v.add(good, "CAP_IPC_LOCK: effective")
	default:
		v.add(absent, "CAP_IPC_LOCK: not effective")
	}
}

// mayLock reports whether memlock and CAP_IPC_LOCK let the process lock, and register, memory of a size.
func (v *verification) mayLock(size spec.Limit) bool {
	return v.IPCLock || v.Memlock == nil || v.Memlock.Soft >= size
}

// devices opens the devices that RDMA programs use.
func (v *verification) devices() {
	folder := filepath.Join(v.root, "dev/infiniband")
	found, err := filepath.Glob(filepath.Join(folder, "uverbs*"))
	if err != nil || len(found) == 0 {
		v.add(bad, "verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, where the policy lists the namespace, annotate the pod with %s: \"true\"",
			policy.AnnotationKey)
		return
	}
	if v.node, err = hca.Scan(v.root); err != nil {
		v.node = &hca.Node{}
	}
	slices.SortStableFunc(found, func(a, b string) int { return len(a) - len(b) })
	active := false
	for _, file := range found {
		device := path.Join("/dev/infiniband", path.Base(file))
		owner, known := ownerOf(v.node, device)
		switch err := v.open(file); {
		case err != nil:
			v.add(bad, "%s: %s", device, openRemedy(err, v.node.NetNSExclusive && !known))
		case known:
			v.add(good, "%s: opened: %s, %s", device, owner.Name, portsOf(owner))
			active = active || owner.Active()
		default:
			v.add(good, "%s: opened", device)
			active = true // as far as can be told
		}
	}
	if !active && !v.Fails {
		v.add(bad, "ports: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager")
	}
	switch err := v.open(filepath.Join(folder, "rdma_cm")); {
	case errors.Is(err, unix.ENOENT):
		v.add(absent, "/dev/infiniband/rdma_cm: does not exist: programs that connect through RDMA_CM need it")
	case err != nil:
		v.add(bad, "/dev/infiniband/rdma_cm: %s", openRemedy(err, false))
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

// portsOf returns the states of an HCA's ports: "port 1 ACTIVE, port 2 DOWN".
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

// openRemedy returns the reason why a device cannot be opened, and the remedy. elsewhere: its HCA is in another network namespace, and HCAs are
// exclusive to theirs.
func openRemedy(err error, elsewhere bool) string {
	switch {
	case errors.Is(err, unix.EPERM) && elsewhere:
		return "its HCA is in another network namespace, and the node's mode is exclusive: have an RDMA CNI plugin move the HCA into the pod's namespace, or run rdma system set netns shared on the node"
	case errors.Is(err, unix.EPERM):
		return "the container's device cgroup does not permit it: a mount alone gives no access; take the device from a device plugin or by the annotation"
	case errors.Is(err, unix.EACCES):
		return "its file mode does not let this user open it: it should have mode 0666 on the node"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return "the node has no such device anymore: recreate the pod"
	}
	return err.Error()
}

// locking locks memory.
func (v *verification) locking(size spec.Limit) {
	const spare = 16 << 20 // for the program itself
	if room, known := v.room(); known && room < uint64(size)+spare {
		v.add(absent, "lock %s: not tried: the container may use only %s more memory, and would be killed; choose less with --lock", size, spec.Limit(room))
		if !v.mayLock(size) {
			v.add(bad, "memlock: less than %s: %s", size, memlockRemedy)
		}
		return
	}
	err := v.lock(int(size))
	refused := errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN)
	switch {
	case err == nil:
		v.add(good, "lock %s: done", size)
	case refused && !v.mayLock(size):
		v.add(bad, "lock %s: %v: memlock is %s: %s", size, err, v.Memlock.Soft, memlockRemedy)
	case errors.Is(err, unix.EPERM): // memlock and the capability suffice
		v.add(absent, "lock %s: %v: a seccomp profile or a security module forbids mlock here, which does not matter to RDMA", size, err)
	case refused && v.Memlock != nil:
		v.add(bad, "lock %s: %v, although memlock or CAP_IPC_LOCK allow it: the node has too little memory", size, err)
	default:
		v.add(bad, "lock %s: %v", size, err)
	}
}

// memlockRemedy is how a container gets a sufficient memlock. A process cannot raise its own.
const memlockRemedy = "see that nri-rdma runs on the node and takes this container for an RDMA container (rdma-spec explain, rdma-spec status), and recreate the pod or run rdma-spec repair on the node"
