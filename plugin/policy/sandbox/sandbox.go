// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox recognizes sandbox runtimes, which run a container on a separate kernel: Kata, gVisor, libkrun, and
// Contrast. The container's limits and capabilities do not apply to the container's process on the node, which is a
// virtual machine monitor, for example. The package has few dependencies, so that the hook stays small.
package sandbox

import (
	"path"
	"slices"
	"strings"
)

// kind is a kind of sandbox runtime: globs for the names of runtime handlers, and prefixes of the other names.
type kind struct{ handlers, types, programs, annotations []string }

// monitors are the virtual machine monitors that Kata starts. A container can also start a monitor, as KubeVirt's
// containers do.
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

// Handlers returns globs that match the usual names of sandbox runtimes' handlers in the configurations of container
// runtimes.
func Handlers() (globs []string) {
	for _, k := range kinds {
		globs = append(globs, k.handlers...)
	}
	return globs
}

// Handler reports whether a runtime handler is a sandbox runtime, according to the handler's name, runtime_type, or
// program.
func Handler(name, kind, program string) bool {
	return Type(kind) || Program(program) || slices.ContainsFunc(Handlers(), func(glob string) bool {
		is, _ := path.Match(glob, name) // the globs are valid
		return is
	})
}

// Type reports whether a runtime_type of containerd is a sandbox runtime.
func Type(name string) bool { return hasAnyPrefix(name, func(k kind) []string { return k.types }) }

// Program reports whether the program at a path is a sandbox runtime, or a monitor that a sandbox runtime starts.
func Program(file string) bool {
	return hasAnyPrefix(path.Base(file), func(k kind) []string { return k.programs })
}

// Process reports whether a process that runs a program belongs to a sandbox runtime. A monitor belongs to a sandbox
// runtime only if the monitor runs on the node, because a container can start its own monitor.
func Process(file string, onNode bool) bool {
	monitor := slices.ContainsFunc(monitors, func(name string) bool { return strings.HasPrefix(path.Base(file), name) })
	return Program(file) && (onNode || !monitor)
}

// Annotated reports whether the annotations of an OCI spec contain an annotation of a sandbox runtime.
func Annotated(annotations map[string]string) bool {
	for key, value := range annotations {
		if hasAnyPrefix(key, func(k kind) []string { return k.annotations }) || key == "run.oci.handler" && value == "krun" {
			return true
		}
	}
	return false
}

// hasAnyPrefix reports whether a name has a prefix of any kind of sandbox runtime. The argument of is a function that
// returns the prefixes of a kind.
func hasAnyPrefix(name string, of func(kind) []string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool {
		return slices.ContainsFunc(of(k), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}
