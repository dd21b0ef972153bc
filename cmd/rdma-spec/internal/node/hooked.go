// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// ReloadTakes describes the devices that a reload of systemd removes from containers, and the affected containers. It
// returns "" if a reload removes nothing. If systemd manages the cgroups, a reload applies the device list with which a
// container's unit was created. A device that a hook allowed later is not in this list
// (https://github.com/NVIDIA/gpu-operator/issues/485).
func (s *Snapshot) ReloadTakes() string {
	names, known := s.Hooked()
	affected := "The affected containers are unknown."
	switch {
	case len(names) == 0 && known:
		return ""
	case len(names) > 0:
		affected = "Affected containers: " + strings.Join(names[:min(len(names), mostNamed)], ", ")
		if more := len(names) - mostNamed; more > 0 {
			affected += fmt.Sprintf(", and %d more", more)
		}
		affected += "."
	}
	return "A systemd reload (daemon-reload, enable) removes GPUs that a hook added to containers. NVIDIA's " +
		"container runtime in legacy mode (the default before version 1.18) uses such a hook. " + affected +
		" To get the GPUs back, recreate the pods. To avoid the reload, install the plugin as a DaemonSet, or with " +
		"configure plugin --launched."
}

// mostNamed is the largest number of containers that the text names.
const mostNamed = 4

// ShowsScopes is a command that lists each container's unit with the number of its entries for NVIDIA GPUs, whose major
// device number is 195. A container keeps its GPUs if its unit has such an entry.
const ShowsScopes = "grep -c /195: /run/systemd/transient/*.scope.d/50-DeviceAllow.conf"

// Hooked returns the containers that lose devices in a reload of systemd, because a hook added the devices and they are
// not in the container's spec: GPUs, or HCAs requested with NVIDIA_MOFED. A name looks like "ml/train-0 worker". If
// known is false, other containers can be affected too, because a runtime or a container could not be queried.
func (s *Snapshot) Hooked() (names []string, known bool) {
	runtimes, err := s.Runtimes()
	possible := err != nil || slices.ContainsFunc(runtimes.Runtimes, func(r runtime.Runtime) bool {
		return r.Serves && !r.Known || slices.ContainsFunc(r.Handlers, runtime.Handler.Hooks)
	})
	listing, err := s.Listing()
	if err != nil {
		return nil, !possible
	}
	for _, l := range listing.Containers {
		i := slices.IndexFunc(runtimes.Runtimes, func(r runtime.Runtime) bool { return r.Socket == l.Runtime.Socket })
		hooks := i < 0 || !runtimes.Runtimes[i].Known || runtimes.Runtimes[i].Name == runtime.NameCRIO ||
			runtimes.Runtimes[i].Handler(l.RuntimeHandler).Hooks() // CRI-O runs hooks by itself
		if l.losesDevices(s.Root, hooks) {
			names = append(names, l.Namespace+"/"+l.Pod+" "+l.Name)
		}
	}
	unread := slices.ContainsFunc(listing.Containers, func(l Listed) bool { return l.Problem != "" })
	return names, !possible || len(listing.Skipped) == 0 && !unread
}

// visibles are the variables with which a container requests devices from a hook, and prefixes of the devices' names
// (https://github.com/HabanaAI/habana-container-runtime).
var visibles = []struct {
	variable string
	names    []string
	numbered []string // how a systemd unit can list them; nil if their major numbers vary
}{
	{"NVIDIA_VISIBLE_DEVICES", []string{"nvidia"}, []string{"/195:", "nvidia"}},
	{"HABANA_VISIBLE_DEVICES", []string{"hl", "accel"}, nil},
}

// losesDevices reports whether a reload of systemd removes devices from a container. If the container's systemd unit is
// known, the container loses the devices that the unit does not allow. Otherwise, it is assumed to lose the devices
// that it requests from a hook and that are not in its spec. A container that can open all devices loses none. Even
// devices from the spec can be lost: runc 1.1.3 to 1.1.6 do not copy all of them to the unit
// (https://github.com/opencontainers/runc/issues/3708).
func (l Listed) losesDevices(root string, hooks bool) bool {
	if l.AllDevices {
		return false
	}
	scope := l.scope(root)
	allowed := func(numbered []string) bool { return scope != nil && scope.Allows(numbered...) }
	if hooks && l.MOFED && l.requestsDevices("NVIDIA_VISIBLE_DEVICES") && !allowed([]string{"/231:", "infiniband"}) {
		return true
	}
	for _, v := range visibles {
		inSpec := slices.ContainsFunc(l.Devices, func(d policy.Device) bool {
			return slices.ContainsFunc(v.names, func(name string) bool { return strings.HasPrefix(path.Base(d.Path), name) })
		})
		byHook := hooks && !inSpec && l.requestsDevices(v.variable) && l.Spec.Env[v.variable] != "none"
		if (byHook || inSpec && scope != nil && v.numbered != nil) && !allowed(v.numbered) {
			return true
		}
	}
	return false
}

// requestsDevices reports whether a container requests devices with this variable from NVIDIA's runtime or a similar
// one.
func (l Listed) requestsDevices(variable string) bool {
	visible := l.Spec.Env[variable]
	return visible != "" && visible != "void"
}

// scope returns the settings that systemd applies to the container in a reload; nil if they are unknown.
func (l Listed) scope(root string) *process.Scope {
	if l.Scope != nil || l.PID == 0 {
		return l.Scope
	}
	scope, known := process.Process{PID: l.PID}.Scope(root, l.ID)
	if !known {
		return nil
	}
	return &scope
}
