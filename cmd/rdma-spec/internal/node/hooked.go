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

// ReloadTakes says what a reload of systemd takes from containers of the node; "" where that is nothing. Where systemd
// manages cgroups, it applies the list of devices that a container's unit was made with, which has nothing of what a
// hook has allowed since (https://github.com/NVIDIA/gpu-operator/issues/485).
func (s *Snapshot) ReloadTakes() string {
	names, known := s.Hooked()
	of := "the affected containers are unknown"
	switch {
	case len(names) == 0 && known:
		return ""
	case len(names) > 0:
		of = strings.Join(names[:min(len(names), mostNamed)], ", ")
		if more := len(names) - mostNamed; more > 0 {
			of += fmt.Sprintf(", and %d more", more)
		}
	}
	return "a reload of systemd (daemon-reload, enable) removes GPUs from containers until their pods are recreated, " +
		"if a hook such as that of NVIDIA's container runtime (mode legacy, the default before version 1.18) added the " +
		"GPUs: " + of + "; installation as a DaemonSet or with configure plugin --launched needs no reload"
}

// mostNamed is how many containers a text names.
const mostNamed = 4

// ShowsScopes is the command that shows which containers keep GPUs of NVIDIA: those whose unit has a device with their
// major number.
const ShowsScopes = "grep -c /195: /run/systemd/transient/*.scope.d/50-DeviceAllow.conf"

// Hooked returns the containers whose GPUs, or HCAs by NVIDIA_MOFED, came by a hook and are not in their spec, as
// "ml/train-0 worker". It is false where there may be others: whoever cannot be asked may have some.
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

// visibles are the variables by which a container asks a hook for devices, and the beginnings of the devices' names
// (https://github.com/HabanaAI/habana-container-runtime).
var visibles = []struct {
	variable string
	names    []string
	numbered []string // as a unit of systemd may have them; nil where their numbers change
}{
	{"NVIDIA_VISIBLE_DEVICES", []string{"nvidia"}, []string{"/195:", "nvidia"}},
	{"HABANA_VISIBLE_DEVICES", []string{"hl", "accel"}, nil},
}

// losesDevices reports whether a reload takes devices from a container. What its unit of systemd allows is known, or
// else what it asks a hook for that its spec does not have is lost. One that may open all devices keeps them. With runc
// 1.1.3 to 1.1.6, the unit does not have all that the spec has (https://github.com/opencontainers/runc/issues/3708).
func (l Listed) losesDevices(root string, hooks bool) bool {
	if l.AllDevices {
		return false
	}
	scope := l.scope(root)
	allowed := func(numbered []string) bool { return scope != nil && scope.Allows(numbered...) }
	if hooks && l.MOFED && l.asks("NVIDIA_VISIBLE_DEVICES") && !allowed([]string{"/231:", "infiniband"}) {
		return true
	}
	for _, v := range visibles {
		inSpec := slices.ContainsFunc(l.Devices, func(d policy.Device) bool {
			return slices.ContainsFunc(v.names, func(name string) bool { return strings.HasPrefix(path.Base(d.Path), name) })
		})
		byHook := hooks && !inSpec && l.asks(v.variable) && l.Spec.Env[v.variable] != "none"
		if (byHook || inSpec && scope != nil && v.numbered != nil) && !allowed(v.numbered) {
			return true
		}
	}
	return false
}

// asks reports whether a container asks NVIDIA's runtime, or one like it, for anything.
func (l Listed) asks(variable string) bool {
	visible := l.Spec.Env[variable]
	return visible != "" && visible != "void"
}

// scope returns what systemd applies to the container when it is reloaded, nil where that is unknown.
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
