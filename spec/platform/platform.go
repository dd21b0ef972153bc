// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform writes a Grant in the configuration language of a container runtime, or of another program that
// configures a node.
//
// The package contains the syntax of each configuration, and the settings that each configuration supports. It does not
// write files or restart daemons. Each configuration applies to every container on a node, or to every container of a
// runtime handler. The package does not decide which Grant a container gets.
package platform

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// Platform is a container runtime, or another program that configures a node, whose configuration can express a Grant.
type Platform struct {
	Name string
	// Note describes where to put the configuration and which containers the configuration affects. If comments in the
	// configuration contain this information, Note is "".
	Note string
	// baseInstead, ipcLockInstead, and devicesInstead are alternatives for a configuration that cannot start from
	// another base spec, grant CAP_IPC_LOCK, or grant devices. If the configuration supports the setting, the field is
	// "".
	baseInstead, ipcLockInstead, devicesInstead string
	// config writes the configuration for a grant that Allows accepts. If base is nil, config starts from the
	// platform's own base spec.
	config func(grant spec.Grant, base []byte) ([]byte, error)
}

// All contains all platforms. The first platform uses a base spec unchanged.
var All = []Platform{
	{Name: "containerd", config: containerd},
	{
		Name: "docker",
		Note: "merge the output into /etc/docker/daemon.json, and restart Docker; the setting affects every container that " +
			"is started without --ulimit memlock",
		baseInstead:    "omit --from, because Docker has no base spec",
		ipcLockInstead: "to add the capability to a container, use docker run --cap-add IPC_LOCK",
		devicesInstead: "to add devices to a container, use docker run --device /dev/infiniband",
		config:         docker,
	},
	{
		Name:        "crio",
		baseInstead: "omit --from, because CRI-O has no base spec",
		ipcLockInstead: "add IPC_LOCK in the pod's securityContext, because default_capabilities can only be replaced as a " +
			"whole",
		devicesInstead: "use a device plugin, because CRI-O does not start if a path in additional_devices is missing",
		config:         crio,
	},
	{Name: "nodeadm", config: nodeadm},
	{Name: "talos", baseInstead: "omit --from, because Talos adds the settings to its own base spec", config: talos},
	{
		Name:           "bottlerocket",
		baseInstead:    "omit --from, because Bottlerocket generates its own base spec",
		devicesInstead: "use a device plugin, because Bottlerocket has no setting for devices",
		config:         bottlerocket,
	},
	{
		Name:           "systemd",
		baseInstead:    "omit --from, because a systemd unit has no base spec",
		ipcLockInstead: "omit --ipc-lock, because containers do not inherit capabilities from containerd",
		devicesInstead: "use a device plugin, because containers do not inherit devices from containerd",
		config:         systemd,
	},
}

// Find returns the platform with the given name.
func Find(name string) (Platform, error) {
	var names []string
	for _, p := range All {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Platform{}, fmt.Errorf("unknown platform %q: specify one of %s", name, strings.Join(names, ", "))
}

// Immutable returns a message about how to configure the node below a root if the node's /etc is read-only.
func Immutable(root string) string {
	release, err := os.ReadFile(files.Below(root, "/etc/os-release"))
	if err != nil {
		release, _ = os.ReadFile(files.Below(root, "/usr/lib/os-release")) // without the file, the message lists all formats
	}
	for line := range strings.Lines(string(release)) {
		switch id := strings.Trim(strings.TrimSpace(strings.TrimPrefix(line, "ID=")), `"'`); {
		case !strings.HasPrefix(line, "ID="):
		case id == "talos" || id == "bottlerocket":
			return fmt.Sprintf("the node is immutable: add the output of rdma-spec generate --for %[1]s to the %[1]s "+
				"configuration", id)
		}
	}
	return "the node is immutable: change the source of its image or configuration (rdma-spec generate --for writes " +
		"configurations for talos, bottlerocket, and nodeadm)"
}

// GivesIPCLock reports whether the platform's configuration can grant CAP_IPC_LOCK.
func (p Platform) GivesIPCLock() bool { return p.ipcLockInstead == "" }

// Allows returns an error if the platform's configuration cannot express a request: another base spec, CAP_IPC_LOCK, or
// devices. The error contains an alternative.
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

// Config returns the text of the configuration that gives a platform's containers the grant. The configuration starts
// from the base spec base, or from the platform's own base spec if base is nil. Config returns the errors of Allows and
// of Grant.Apply, and an error for a grant without memlock.
func (p Platform) Config(grant spec.Grant, base []byte) ([]byte, error) {
	if grant.Memlock == 0 {
		return nil, errors.New("a platform's configuration needs a locked-memory limit (memlock)")
	}
	if err := p.Allows(base != nil, grant.IPCLock != spec.IPCLockNo, len(grant.Devices) > 0); err != nil {
		return nil, err
	}
	return p.config(grant, base)
}
