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

// DeviceAccess is the device cgroup access that a granted device gets: no mknod.
const DeviceAccess = "rw"

// addDevices adds devices to linux.devices where they are not there already, and the cgroup rules that allow them.
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
			return fmt.Errorf("linux.devices already has a device at %s (type %s, %d:%d), where %s is to be added: remove it "+
				"from the spec",
				d.Path, other.Type, other.Major, other.Minor, d.Number)
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

// sameDevice reports whether an entry of a spec is the granted character device; "u" is OCI's other name for the type
// "c".
func sameDevice(present, granted specs.LinuxDevice) bool {
	return (present.Type == "c" || present.Type == "u") && present.Major == granted.Major && present.Minor == granted.Minor
}

// allowDevices appends the cgroup rules that the devices need and that are not there. Later rules win, so they stand
// last.
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
			clear(allowed) // a later denial may take back what was allowed before it
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
