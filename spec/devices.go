// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// DeviceAccess is the device cgroup access that a granted device gets: no mknod.
const DeviceAccess = "rw"

// addDevices adds devices to linux.devices where their path is not taken, and the cgroup rules that allow them.
func addDevices(linux *object, devices []hca.Device) error {
	present, err := linux.list("devices")
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	for i, raw := range present {
		var d specs.LinuxDevice
		if err := json.Unmarshal(raw, &d); err != nil {
			return typeError(fmt.Sprintf("linux.devices[%d]", i), "device")
		}
		taken[d.Path] = true
	}
	before := len(present)
	for _, d := range devices {
		if !taken[d.Path] {
			taken[d.Path] = true
			present = append(present, encode(ociDevice(d)))
		}
	}
	if len(present) > before {
		linux.setList("devices", present)
	}
	return linux.edit("resources", func(resources *object) error { return allowDevices(resources, devices) })
}

func ociDevice(d hca.Device) specs.LinuxDevice {
	mode := d.Mode & os.ModePerm
	return specs.LinuxDevice{
		Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor),
		FileMode: &mode, UID: &d.UID, GID: &d.GID,
	}
}

// allowDevices appends the cgroup rules that the devices need and that are not there. Later rules win, so they stand last.
func allowDevices(resources *object, devices []hca.Device) error {
	rules, err := resources.list("devices")
	if err != nil {
		return err
	}
	allowed := map[hca.Number]bool{}
	for i, raw := range rules {
		var rule specs.LinuxDeviceCgroup
		if err := json.Unmarshal(raw, &rule); err != nil {
			return typeError(fmt.Sprintf("linux.resources.devices[%d]", i), "device rule")
		}
		switch {
		case !rule.Allow:
			clear(allowed) // a later denial may take back what was allowed before it
		case rule.Type == "c" && rule.Major != nil && rule.Minor != nil && (rule.Access == "rw" || rule.Access == "rwm"):
			allowed[hca.Number{Major: uint32(*rule.Major), Minor: uint32(*rule.Minor)}] = true
		}
	}
	before := len(rules)
	for _, d := range devices {
		if allowed[d.Number] {
			continue
		}
		allowed[d.Number] = true
		major, minor := int64(d.Major), int64(d.Minor)
		rules = append(rules, encode(specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: DeviceAccess}))
	}
	if len(rules) > before {
		resources.setList("devices", rules)
	}
	return nil
}
