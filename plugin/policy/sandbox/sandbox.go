// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox recognizes runtimes that run a container on a separate kernel: Kata, gVisor, libkrun, and Contrast.
// On the node, such a container's process is a virtual machine monitor, for example, to which the container's limits
// and capabilities do not apply. The package has few dependencies, so that the hook stays small.
package sandbox

import (
	"path"
	"slices"
	"strings"
)

// kind is a kind of sandbox: the globs of its handlers, and the prefixes of its other names.
type kind struct{ handlers, types, programs, annotations []string }

// monitors are the programs that Kata starts. A container may contain them as well, as KubeVirt's do.
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

// Handlers returns globs of the usual names of such runtimes' handlers in container runtimes' configurations.
func Handlers() (globs []string) {
	for _, k := range kinds {
		globs = append(globs, k.handlers...)
	}
	return globs
}

// Handler reports whether pods with a handler run in such a runtime, according to the handler's name, its runtime_type,
// or its program.
func Handler(name, kind, program string) bool {
	return Type(kind) || Program(program) || slices.ContainsFunc(Handlers(), func(glob string) bool {
		is, _ := path.Match(glob, name) // the globs are valid
		return is
	})
}

// Type reports whether one of containerd's runtime_types is such a runtime.
func Type(name string) bool { return hasAnyPrefix(name, func(k kind) []string { return k.types }) }

// Program reports whether the program at a path is such a runtime, or the monitor that it starts.
func Program(file string) bool {
	return hasAnyPrefix(path.Base(file), func(k kind) []string { return k.programs })
}

// Process reports whether a process that runs a program belongs to such a runtime. A monitor does only if it runs on
// the node, since a container may start its own.
func Process(file string, onNode bool) bool {
	monitor := slices.ContainsFunc(monitors, func(name string) bool { return strings.HasPrefix(path.Base(file), name) })
	return Program(file) && (onNode || !monitor)
}

// Annotated reports whether an OCI spec's annotations are those of such a runtime.
func Annotated(annotations map[string]string) bool {
	for key, value := range annotations {
		if hasAnyPrefix(key, func(k kind) []string { return k.annotations }) || key == "run.oci.handler" && value == "krun" {
			return true
		}
	}
	return false
}

// hasAnyPrefix reports whether a name has one of the prefixes of some kind of sandbox.
func hasAnyPrefix(name string, of func(kind) []string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool {
		return slices.ContainsFunc(of(k), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}
