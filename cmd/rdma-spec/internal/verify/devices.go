// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"errors"
	"fmt"
	"os"
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

// heldHCA is a verbs device of the container, and the HCA to which the device belongs.
type heldHCA struct {
	file   string  // the path for opening the device
	name   string  // the HCA's name, or the path at which programs open the device
	hca    hca.HCA // without a name if sysfs does not contain it
	driver verbs.Driver
	abi    int // the ABI version of the kernel's driver
	opened bool
}

// devices opens the devices that RDMA programs use in a directory, and returns the verbs devices. It reads only the
// HCAs of these devices, so an HCA that hangs delays only containers that have this HCA.
func (v *verification) devices(dir string) (held []heldHCA) {
	files, _ := v.seen.Files.Match(dir + "/uverbs*") // unlistable files count as missing
	switch {
	case v.elsewhere && len(files) == 0:
		v.add("device", doctor.Unknown, "verbs devices of the target: not visible from this container")
		return nil
	case len(files) == 0:
		v.addFault("device", causeDevice,
			"verbs devices: none in /dev/infiniband: request the RDMA device plugin's resource or, if the policy lists the "+
				"namespace, annotate the pod with %s: \"true\"",
			policy.AnnotationKey)
		return nil
	}
	listed, err := hca.List(v.root)
	if err != nil {
		listed = &hca.Inventory{}
	}
	device := func(h hca.HCA) string { d, _ := h.Verbs(); return path.Base(d.Path) }
	listed.HCAs = slices.DeleteFunc(listed.HCAs, func(h hca.HCA) bool {
		return !slices.ContainsFunc(files, func(file string) bool { return path.Base(file) == device(h) })
	})
	listed = v.seen.ReadListed(listed)
	slices.SortStableFunc(files, func(a, b string) int { return len(a) - len(b) })
	for _, file := range files {
		h := heldHCA{file: filepath.Join(v.root, file), name: "/dev/infiniband/" + path.Base(file)}
		said := ""
		if i := slices.IndexFunc(listed.HCAs, func(of hca.HCA) bool { return device(of) == path.Base(file) }); i >= 0 {
			h.hca = listed.HCAs[i]
			said = ": " + h.hca.Name + ", " + portsOf(h.hca)
		}
		provider, abi := verbs.Provider(h.hca, v.read)
		h.driver = verbs.Driver(provider)
		h.abi = abi
		if v.elsewhere {
			v.add("device", doctor.Unknown, "the target's %s%s: skipped, because this container is not the target", h.name, said)
		} else {
			h.opened = v.tryOpen(h.file, said, listed.NetNSExclusive && said == "")
		}
		if h.hca.Unread != "" {
			h.opened = false
			v.addFault("device", causeDevice, "%s: %s. The HCA's firmware does not respond: on the node, check the kernel "+
				"log, and reset the HCA",
				h.hca.Name, h.hca.Unread)
		}
		h.name = cmp.Or(h.hca.Name, h.name)
		held = append(held, h)
	}
	manager := filepath.Join(v.root, dir, "rdma_cm")
	switch {
	case v.elsewhere:
	case errors.Is(v.open(manager), unix.ENOENT):
		v.add("device", note, "/dev/infiniband/rdma_cm: does not exist, but programs that connect through "+
			"RDMA_CM need it")
	default:
		v.tryOpen(manager, "", false)
	}
	return held
}

// tryOpen opens a device of this container, and adds the finding. If hidden is true, the device's HCA might be in
// another network namespace.
func (v *verification) tryOpen(file, said string, hidden bool) bool {
	name := "/dev/infiniband/" + path.Base(file)
	if err := v.open(file); err != nil {
		info, _ := os.Stat(file)
		why, fix := openFix(err, hidden, info != nil && info.Mode().Perm()&0o006 == 0o006)
		v.addFault("device", why, "%s: %s", name, fix)
		return false
	}
	v.add("device", doctor.OK, "%s: opened%s", name, said)
	return true
}

// portsOf returns the states of an HCA's ports: "port 1 ACTIVE, port 2 DOWN".
func portsOf(h hca.HCA) string {
	if h.Unread != "" {
		return h.Unread
	}
	var ports []string
	for _, p := range h.Ports {
		ports = append(ports, fmt.Sprintf("port %d %s", p.Number, cmp.Or(p.State, "unknown")))
	}
	if len(ports) == 0 {
		return "no ports"
	}
	return strings.Join(ports, ", ")
}

// openFix returns the reason why a device cannot be opened, and the fix. If hidden is true, the device's HCA is in
// another network namespace, and the netns mode is exclusive. If everybody is true, the file mode lets every user open
// the device.
func openFix(err error, hidden, everybody bool) (cause, string) {
	switch {
	case errors.Is(err, unix.EPERM) && hidden:
		return causeDevice,
			"the HCA is in another network namespace, and the node's netns mode is exclusive: let an RDMA CNI plugin " +
				"move the HCA into the pod's namespace, or run \"rdma system set netns shared\" on the node"
	case errors.Is(err, unix.EPERM):
		return causeCgroup, "the container's device cgroup denies access to the device: instead of a mount, use " +
			"a device plugin or the " + policy.AnnotationKey + " annotation"
	case errors.Is(err, unix.EACCES) && everybody:
		return causeSecurity, "the file mode lets every user open the device, so SELinux or AppArmor must be " +
			"blocking access: see the node's audit log (ausearch -m avc), and allow the access in the container's policy"
	case errors.Is(err, unix.EACCES):
		return causeMode, "the file mode does not let this user open the device: on the node, the device " +
			"should have mode 0666"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return causeDevice, "the device no longer exists on the node: recreate the pod"
	}
	return causeDevice, err.Error()
}
