// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"slices"
	"strings"
)

// scopeDirs are where systemd keeps the units that a runtime makes for containers: the second one before systemd 230.
var scopeDirs = []string{"run/systemd/transient", "run/systemd/system"}

// Scope is the list of devices that systemd applies to a container when it is reloaded. What a hook has allowed since
// the container was created is not in it.
type Scope struct {
	// Untouched says that a reload changes nothing: systemd does not manage the container's cgroup, or its unit allows
	// all devices.
	Untouched bool     `json:"untouched,omitempty"`
	Devices   []string `json:"devices,omitempty"` // that programs may read and write: /dev/char/195:0
}

// Allows reports whether programs have devices that are called or numbered so after a reload: "nvidia", "195:".
func (s Scope) Allows(names ...string) bool {
	return s.Untouched || slices.ContainsFunc(s.Devices, func(device string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(device, name) })
	})
}

// Scope reads that of a process of the container with an ID; known is false where it cannot be read. systemd writes it
// for runc (https://github.com/opencontainers/runc/issues/4568).
func (p Process) Scope(root, container string) (scope Scope, known bool) {
	text, _ := os.ReadFile(p.File(root, "cgroup")) // without it, the scope is unknown
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
