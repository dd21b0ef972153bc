// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/runtime"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// ReloadTakes says what a reload of systemd takes from containers of the node; "" where that is nothing. Where systemd
// manages cgroups, it applies the list of devices that a container's unit was made with, which has nothing of what a
// hook has allowed since (https://github.com/NVIDIA/gpu-operator/issues/485).
func (s *Snapshot) ReloadTakes() string {
	names, known := s.Hooked()
	of := "which these are is unknown"
	switch {
	case len(names) == 0 && known:
		return ""
	case len(names) > 0:
		of = strings.Join(names[:min(len(names), mostNamed)], ", ")
		if more := len(names) - mostNamed; more > 0 {
			of += fmt.Sprintf(", and %d more", more)
		}
	}
	return "a reload of systemd (daemon-reload, enable) takes the GPUs, until their pods are created again, from " +
		"containers that got them by the hook of NVIDIA's container runtime (mode legacy, the default before version 1.18)" +
		": " + of + "; the DaemonSet and configure plugin --launched need no reload"
}

// mostNamed is how many containers a text names.
const mostNamed = 4

// LegacyMode are commands that show whether NVIDIA's container runtime gives GPUs by its hook.
const LegacyMode = "nvidia-ctk --version; grep mode /etc/nvidia-container-runtime/config.toml"

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
		if hooks && l.devicesByHook() {
			names = append(names, l.Namespace+"/"+l.Pod+" "+l.Name)
		}
	}
	unread := slices.ContainsFunc(listing.Containers, func(l Listed) bool { return l.Problem != "" })
	return names, !possible || len(listing.Skipped) == 0 && !unread
}

// devicesByHook reports whether a container asks NVIDIA's hook for devices that its spec does not have. One that may
// open all devices keeps them.
func (l Listed) devicesByHook() bool {
	visible := l.Spec.Env["NVIDIA_VISIBLE_DEVICES"]
	if l.AllDevices || visible == "" || visible == "void" {
		return false
	}
	gpu := func(d policy.Device) bool { return strings.HasPrefix(path.Base(d.Path), "nvidia") }
	return l.MOFED || visible != "none" && !slices.ContainsFunc(l.Devices, gpu)
}
