// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/verbs"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// heldHCA is a verbs device of the container, and the HCA that it belongs to.
type heldHCA struct {
	file   string // where it can be opened
	device string // where programs open it
	hca    hca.HCA
	driver verbs.Driver // "" where it is not known
	abi    int          // of the kernel's driver
	known  bool         // sysfs names the HCA
	opened bool
}

// name names the HCA, or its device.
func (h heldHCA) name() string {
	if h.known {
		return h.hca.Name
	}
	return h.device
}

// devices opens the devices that RDMA programs use, and returns the verbs devices.
func (v *verification) devices() []heldHCA {
	folder := filepath.Join(v.image, "dev/infiniband")
	files, err := filepath.Glob(filepath.Join(folder, "uverbs*"))
	switch {
	case v.elsewhere && (err != nil || len(files) == 0):
		v.add("device", doctor.Unknown, "verbs devices of the target: cannot be seen from this container")
		return nil
	case err != nil || len(files) == 0:
		v.fails("device", causeDevice,
			"verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, where the policy lists the "+
				"namespace, annotate the pod with %s: \"true\"",
			policy.AnnotationKey)
		return nil
	}
	node, err := hca.Scan(v.root)
	if err != nil {
		node = &hca.Inventory{}
	}
	slices.SortStableFunc(files, func(a, b string) int { return len(a) - len(b) })
	var held []heldHCA
	for _, file := range files {
		h := heldHCA{file: file, device: path.Join("/dev/infiniband", path.Base(file))}
		i := slices.IndexFunc(node.HCAs, func(of hca.HCA) bool { d, ok := of.Verbs(); return ok && d.Path == h.device })
		if h.known = i >= 0; h.known {
			h.hca = node.HCAs[i]
		}
		provider, abi := verbs.Provider(h.hca, func(name string) string { return attribute(filepath.Join(v.root, name)) })
		h.driver, h.abi = verbs.Driver(provider), abi
		v.openVerbs(&h, node.NetNSExclusive)
		held = append(held, h)
	}
	if !slices.ContainsFunc(held, func(h heldHCA) bool { return !h.known || h.hca.Active() }) {
		v.fails("port", causePort,
			"ports: none is ACTIVE: check the cable, the switch and, on InfiniBand, the subnet manager")
	}
	v.connectionManager(filepath.Join(folder, "rdma_cm"))
	return held
}

// openVerbs opens a verbs device. A device of another container cannot be opened from here, even if that container can
// open it.
func (v *verification) openVerbs(h *heldHCA, exclusive bool) {
	of := ""
	if h.known {
		of = ": " + h.hca.Name + ", " + portsOf(h.hca)
	}
	if v.elsewhere {
		v.add("device", doctor.Unknown, "%s of the target: not opened from this container%s", h.device, of)
		return
	}
	if err := v.open(h.file); err != nil {
		why, remedy := openRemedy(err, exclusive && !h.known)
		v.fails("device", why, "%s: %s", h.device, remedy)
		return
	}
	h.opened = true
	v.add("device", doctor.OK, "%s: opened%s", h.device, of)
}

// connectionManager opens rdma_cm.
func (v *verification) connectionManager(file string) {
	if v.elsewhere {
		return
	}
	switch err := v.open(file); {
	case errors.Is(err, unix.ENOENT):
		v.add("device", note, "/dev/infiniband/rdma_cm: does not exist: programs that connect through RDMA_CM need it")
	case err != nil:
		why, remedy := openRemedy(err, false)
		v.fails("device", why, "/dev/infiniband/rdma_cm: %s", remedy)
	default:
		v.add("device", doctor.OK, "/dev/infiniband/rdma_cm: opened")
	}
}

// portsOf returns the states of an HCA's ports: "port 1 ACTIVE, port 2 DOWN".
func portsOf(h hca.HCA) string {
	var ports []string
	for _, p := range h.Ports {
		ports = append(ports, fmt.Sprintf("port %d %s", p.Number, cmp.Or(p.State, "unknown")))
	}
	if len(ports) == 0 {
		return "no ports"
	}
	return strings.Join(ports, ", ")
}

// openRemedy returns the reason why a device cannot be opened, and the remedy. elsewhere: its HCA is in another network
// namespace, and HCAs are exclusive to theirs.
func openRemedy(err error, elsewhere bool) (cause, string) {
	switch {
	case errors.Is(err, unix.EPERM) && elsewhere:
		return causeNamespace,
			"its HCA is in another network namespace, and the node's mode is exclusive: have an RDMA CNI plugin move the HCA " +
				"into the pod's namespace, or run rdma system set netns shared on the node"
	case errors.Is(err, unix.EPERM):
		return causeCgroup, "the container's device cgroup does not permit it: a mount alone gives no access; take the " +
			"device from a device plugin or by the annotation"
	case errors.Is(err, unix.EACCES):
		return causeMode, "its file mode does not let this user open it: it should have mode 0666 on the node"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return causeDevice, "the device no longer exists on the node: recreate the pod"
	}
	return causeDevice, err.Error()
}
