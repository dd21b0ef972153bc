// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform writes a Grant in the configuration language of a runtime or a node system.
//
// It knows the syntax of each configuration, and what it can express. It writes no files, and restarts nothing. All of
// these configurations apply to every container on a node or of a runtime handler: this package does not decide which
// container gets which Grant.
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
	// Note says where to put the configuration and what it affects; "" if comments in the configuration say so.
	Note string
	// baseInstead, ipcLockInstead, and devicesInstead say what to do if the configuration cannot start from another base
	// spec, grant CAP_IPC_LOCK, or grant devices; "" if it can.
	baseInstead, ipcLockInstead, devicesInstead string
	// config writes the configuration for a grant that Allows accepts. If base is nil, it starts from the platform's own
	// base spec.
	config func(grant spec.Grant, base []byte) ([]byte, error)
}

// All are the platforms. The first one uses a base spec unchanged.
var All = []Platform{
	{Name: "containerd", config: containerd},
	{
		Name: "docker",
		Note: "merge this into /etc/docker/daemon.json, and restart Docker; the setting affects every container that is " +
			"started without --ulimit memlock",
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
	{Name: "talos", baseInstead: "Talos adds the settings to its own base spec; omit --from", config: talos},
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

// Immutable says how to configure the node below a root if its /etc is read-only.
func Immutable(root string) string {
	release, err := os.ReadFile(files.Below(root, "/etc/os-release"))
	if err != nil {
		release, _ = os.ReadFile(files.Below(root, "/usr/lib/os-release")) // without it, the message lists all formats
	}
	for line := range strings.Lines(string(release)) {
		switch id := strings.Trim(strings.TrimSpace(strings.TrimPrefix(line, "ID=")), `"'`); {
		case !strings.HasPrefix(line, "ID="):
		case id == "talos" || id == "bottlerocket":
			return fmt.Sprintf("the node is immutable: add the output of rdma-spec generate --for %[1]s to the configuration "+
				"of %[1]s", id)
		}
	}
	return "the node is immutable: change the source of its image or configuration; rdma-spec generate --for writes " +
		"configurations for talos, bottlerocket, and nodeadm"
}

// GivesIPCLock reports whether the platform's configuration can grant CAP_IPC_LOCK.
func (p Platform) GivesIPCLock() bool { return p.ipcLockInstead == "" }

// Allows returns an error if the platform's configuration cannot express a request: another base spec, CAP_IPC_LOCK, or
// devices. The error says what to do instead.
func (p Platform) Allows(base, ipcLock, devices bool) error {
	for _, wish := range []struct {
		made          bool
		what, instead string
	}{
		{base, "use another base spec", p.baseInstead},
		{ipcLock, "grant CAP_IPC_LOCK", p.ipcLockInstead},
		{devices, "grant devices", p.devicesInstead},
	} {
		if wish.made && wish.instead != "" {
			return fmt.Errorf("the configuration for %s cannot %s: %s", p.Name, wish.what, wish.instead)
		}
	}
	return nil
}

// Config returns the text of the configuration that gives a platform's containers the grant. base is the base spec to
// start from; nil means the platform's own. Errors are those of Allows and Grant.Apply, and a grant without memlock is
// an error.
func (p Platform) Config(grant spec.Grant, base []byte) ([]byte, error) {
	if grant.Memlock == 0 {
		return nil, errors.New("a platform's configuration needs a locked-memory limit (memlock)")
	}
	if err := p.Allows(base != nil, grant.IPCLock != spec.IPCLockNo, len(grant.Devices) > 0); err != nil {
		return nil, err
	}
	return p.config(grant, base)
}
