// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform writes a Grant in the configuration language of a runtime or a node system.
//
// It knows each one's syntax and what it can express; it writes no file and restarts nothing. All of these
// configurations apply to every container of a node or of a runtime handler: this package does not decide who gets
// what.
package platform

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Platform is a runtime or a node system whose configuration can express a Grant.
type Platform struct {
	Name string
	// Note says where the configuration goes and what it affects; "" where comments in the configuration say so.
	Note string
	// What to do if the configuration cannot start from another base spec, grant CAP_IPC_LOCK, or grant devices; "" if it
	// can.
	baseInstead, ipcLockInstead, devicesInstead string
	// config writes the configuration of a grant that Allows let through. base is nil where the platform's own is meant.
	config func(grant spec.Grant, base []byte) ([]byte, error)
}

// All are the platforms, the one that takes a base spec as it is first.
var All = []Platform{
	{Name: "containerd", config: containerd},
	{
		Name: "docker",
		Note: "merge this into /etc/docker/daemon.json and restart Docker: it affects every container that is run without " +
			"--ulimit memlock",
		baseInstead:    "it has no base spec; omit --from",
		ipcLockInstead: "add it to a container with docker run --cap-add IPC_LOCK",
		devicesInstead: "add them to a container with docker run --device /dev/infiniband",
		config:         docker,
	},
	{
		Name:           "crio",
		baseInstead:    "it has no base spec; omit --from",
		ipcLockInstead: "its default_capabilities can only be replaced as a whole; add IPC_LOCK in the pod's securityContext",
		devicesInstead: "CRI-O does not start if a path in additional_devices is missing; use a device plugin",
		config:         crio,
	},
	{Name: "nodeadm", config: nodeadm},
	{Name: "talos", baseInstead: "it adds to its own base spec; omit --from", config: talos},
	{
		Name:           "bottlerocket",
		baseInstead:    "it generates its own base spec; omit --from",
		devicesInstead: "it has no setting for them; use a device plugin",
		config:         bottlerocket,
	},
	{
		Name:           "systemd",
		baseInstead:    "a unit has no base spec; omit --from",
		ipcLockInstead: "containers do not inherit it from containerd; omit --ipc-lock",
		devicesInstead: "containers do not inherit them from containerd; use a device plugin",
		config:         systemd,
	},
}

// Find returns the platform of that name.
func Find(name string) (Platform, error) {
	var names []string
	for _, p := range All {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Platform{}, fmt.Errorf("unknown platform %q: write one of %s", name, strings.Join(names, ", "))
}

// Immutable says what to do instead on the node below a root, whose /etc cannot be written.
func Immutable(root string) string {
	release, err := os.ReadFile(files.Below(root, "/etc/os-release"))
	if err != nil {
		release, _ = os.ReadFile(files.Below(root, "/usr/lib/os-release")) // without it, all formats are named
	}
	for line := range strings.Lines(string(release)) {
		switch id := strings.Trim(strings.TrimSpace(strings.TrimPrefix(line, "ID=")), `"'`); {
		case !strings.HasPrefix(line, "ID="):
		case id == "talos" || id == "bottlerocket":
			return fmt.Sprintf("the node is immutable: add the output of rdma-spec generate --for %[1]s to the configuration "+
				"of %[1]s", id)
		}
	}
	return "the node is immutable: change the source of its image or configuration; rdma-spec generate --for has " +
		"formats for talos, bottlerocket, and nodeadm"
}

// GivesIPCLock reports whether the configuration can add CAP_IPC_LOCK.
func (p Platform) GivesIPCLock() bool { return p.ipcLockInstead == "" }

// Allows returns an error for what the configuration cannot express: a base spec from elsewhere, CAP_IPC_LOCK, devices.
func (p Platform) Allows(base, ipcLock, devices bool) error {
	for _, wish := range []struct {
		made          bool
		what, instead string
	}{
		{base, "start from another base spec", p.baseInstead},
		{ipcLock, "grant CAP_IPC_LOCK", p.ipcLockInstead},
		{devices, "give devices", p.devicesInstead},
	} {
		if wish.made && wish.instead != "" {
			return fmt.Errorf("the configuration of %s cannot %s: %s", p.Name, wish.what, wish.instead)
		}
	}
	return nil
}

// Config returns the text of the configuration that gives a platform's containers what the grant describes. base is the
// base spec to start from, nil for the platform's own. Errors: those of Allows and of Grant.Apply.
func (p Platform) Config(grant spec.Grant, base []byte) ([]byte, error) {
	if grant.Memlock == 0 {
		return nil, errors.New("a platform's configuration needs a memlock")
	}
	if err := p.Allows(base != nil, grant.IPCLock != spec.IPCLockNo, len(grant.Devices) > 0); err != nil {
		return nil, err
	}
	return p.config(grant, base)
}
