// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox knows the runtimes that run a container on a separate kernel: Kata, gVisor, libkrun, and
// Contrast. The process of such a container on the node is a virtual machine monitor or the like, which gets no limits
// and capabilities of the container's. It links nothing, so that the hook stays small.
package sandbox

import (
	"path"
	"slices"
	"strings"
)

// kind is a kind of sandbox, by globs of its handlers and by what the names of its other parts begin with.
type kind struct{ handlers, types, programs, annotations []string }

// monitors are the programs that Kata starts, and that containers may have as well, as KubeVirt's.
var monitors = []string{"qemu", "cloud-hypervisor", "firecracker", "stratovirt", "crosvm", "dragonball"}

var kinds = []kind{
	{handlers: []string{"kata*"}, types: []string{"io.containerd.kata"}, annotations: []string{"io.katacontainers."},
		programs: append([]string{"kata", "containerd-shim-kata"}, monitors...)},
	{handlers: []string{"runsc*", "gvisor"}, types: []string{"io.containerd.runsc"}, annotations: []string{"dev.gvisor."},
		programs: []string{"runsc"}},
	{handlers: []string{"krun*"}, types: []string{"io.containerd.krun"}, programs: []string{"krun"}},
	{handlers: []string{"contrast*"}, types: []string{"io.containerd.contrast"},
		programs: []string{"containerd-shim-contrast"}},
}

// Handlers are globs of the names that handlers of such runtimes have in the configurations of runtimes.
func Handlers() (globs []string) {
	for _, k := range kinds {
		globs = append(globs, k.handlers...)
	}
	return globs
}

// Handler reports whether pods of a handler are in such a runtime, by its name, its runtime_type, and its program.
func Handler(name, kind, program string) bool {
	return Type(kind) || Program(program) || slices.ContainsFunc(Handlers(), func(glob string) bool {
		is, _ := path.Match(glob, name) // the globs are sound
		return is
	})
}

// Type reports whether a runtime_type of containerd's is that of such a runtime.
func Type(name string) bool { return begins(name, func(k kind) []string { return k.types }) }

// Program reports whether the program at a path is such a runtime, or the monitor that it starts.
func Program(file string) bool {
	return begins(path.Base(file), func(k kind) []string { return k.programs })
}

// Process reports whether a process that runs a program is that of such a runtime. A monitor is one only on the node: a
// container may start one of its own.
func Process(file string, onNode bool) bool {
	monitor := slices.ContainsFunc(monitors, func(name string) bool { return strings.HasPrefix(path.Base(file), name) })
	return Program(file) && (onNode || !monitor)
}

// Annotated reports whether the annotations of an OCI spec are those of such a runtime.
func Annotated(annotations map[string]string) bool {
	for key, value := range annotations {
		if begins(key, func(k kind) []string { return k.annotations }) || key == "run.oci.handler" && value == "krun" {
			return true
		}
	}
	return false
}

// begins reports whether a name begins as some kind of sandbox has it.
func begins(name string, of func(kind) []string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool {
		return slices.ContainsFunc(of(k), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}
