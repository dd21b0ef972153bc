// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// DeviceAccess is the access to a granted device that the device cgroup allows: read and write, but not mknod.
const DeviceAccess = "rw"

// addDevices adds missing devices to linux.devices, and adds the cgroup rules that allow the devices to
// linux.resources.devices. If another device is already at a device's path, addDevices returns an error.
func addDevices(linux *object, devices []hca.Device) error {
	texts, present, err := objects[specs.LinuxDevice](linux, "devices", "a device")
	if err != nil {
		return err
	}
	taken := map[string]specs.LinuxDevice{}
	for _, d := range present {
		taken[d.Path] = d
	}
	before := len(texts)
	for _, d := range devices {
		granted := ociDevice(d)
		switch other, found := taken[d.Path]; {
		case !found:
			taken[d.Path] = granted
			texts = append(texts, encode(granted))
		case !sameDevice(other, granted):
			return fmt.Errorf("linux.devices already contains another device at %s (type %s, %d:%d), so %s cannot be added: "+
				"remove the other device from the spec", d.Path, other.Type, other.Major, other.Minor, d.Number)
		}
	}
	if len(texts) > before {
		linux.setList("devices", texts)
	}
	return linux.edit("resources", func(resources *object) error { return allowDevices(resources, devices) })
}

func ociDevice(d hca.Device) specs.LinuxDevice {
	mode := os.FileMode(d.Mode).Perm()
	return specs.LinuxDevice{
		Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor),
		FileMode: &mode, UID: &d.UID, GID: &d.GID,
	}
}

// sameDevice reports whether an entry in a spec is the granted character device. In OCI specs, "u" is another name for
// the type "c".
func sameDevice(present, granted specs.LinuxDevice) bool {
	return (present.Type == "c" || present.Type == "u") && present.Major == granted.Major && present.Minor == granted.Minor
}

// allowDevices appends missing cgroup rules for the devices. The rules must be at the end, because the last matching
// rule wins.
func allowDevices(resources *object, devices []hca.Device) error {
	texts, rules, err := objects[specs.LinuxDeviceCgroup](resources, "devices", "a device rule")
	if err != nil {
		return err
	}
	type number struct{ major, minor int64 }
	allowed := map[number]bool{}
	for _, rule := range rules {
		switch {
		case !rule.Allow:
			clear(allowed) // the denial can override earlier rules
		case rule.Type == "c" && rule.Major != nil && rule.Minor != nil && strings.Contains(rule.Access, "r") &&
			strings.Contains(rule.Access, "w"):
			allowed[number{*rule.Major, *rule.Minor}] = true
		}
	}
	before := len(texts)
	for _, d := range devices {
		n := number{int64(d.Major), int64(d.Minor)}
		if !allowed[n] {
			allowed[n] = true
			texts = append(texts, encode(specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &n.major,
				Minor: &n.minor, Access: DeviceAccess}))
		}
	}
	if len(texts) > before {
		resources.setList("devices", texts)
	}
	return nil
}
