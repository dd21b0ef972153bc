// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"slices"
	"strings"
)

// scopeDirs are the directories of the units that a runtime creates for containers. systemd before version 230 uses the
// second directory.
var scopeDirs = []string{"run/systemd/transient", "run/systemd/system"}

// Scope is the list of devices that systemd applies to a container when systemd is reloaded. The list lacks devices
// that a hook allowed after the container was created.
type Scope struct {
	// Untouched means that a reload changes nothing. Either systemd does not manage the container's cgroup, or the
	// container's unit allows all devices.
	Untouched bool     `json:"untouched,omitempty"`
	Devices   []string `json:"devices,omitempty"` // devices that programs can read and write, such as /dev/char/195:0
}

// Allows reports whether programs keep devices with one of these names or numbers after a reload. Examples are "nvidia"
// and "195:".
func (s Scope) Allows(names ...string) bool {
	return s.Untouched || slices.ContainsFunc(s.Devices, func(device string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(device, name) })
	})
}

// Scope reads the scope of a process of the container with this ID. known is false if the scope cannot be read. systemd
// writes the scope for runc (https://github.com/opencontainers/runc/issues/4568).
func (p Process) Scope(root, container string) (scope Scope, known bool) {
	text, _ := os.ReadFile(p.File(root, "cgroup")) // on error, the scope is unknown
	unit := ""
	for part := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r == '/' || r == '\n' }) {
		if container != "" && strings.Contains(part, container) {
			unit = part
			known = true
		}
	}
	if !strings.HasSuffix(unit, ".scope") {
		return Scope{Untouched: known}, known // cgroupfs
	}
	if len(unitFiles(root, scopeDirs, unit)) == 0 {
		return scope, false
	}
	settings := func(key string) []Setting { return unitSettings(root, scopeDirs, unit, "Scope", key) }
	rules := settings("DeviceAllow")
	policy := settings("DevicePolicy")
	for _, rule := range rules {
		device, access, _ := strings.Cut(rule.Value, " ")
		if strings.Contains(access, "r") && strings.Contains(access, "w") {
			scope.Devices = append(scope.Devices, device)
		}
	}
	scope.Untouched = len(rules) == 0 && (len(policy) == 0 || policy[len(policy)-1].Value == "auto")
	return scope, true
}
