// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strings"
)

// bundle is what the hook needs of a config.json.
type bundle struct {
	Annotations map[string]string `json:"annotations"`
	Process     struct {
		Rlimits []struct {
			Type string `json:"type"`
		} `json:"rlimits"`
	} `json:"process"`
	Linux struct {
		CgroupsPath string `json:"cgroupsPath"`
	} `json:"linux"`
	VM json.RawMessage `json:"vm"`
}

// decided reports whether somebody else decides about the container's memlock, whoever made the container.
func (b bundle) decided() bool {
	for _, limit := range b.Process.Rlimits {
		if limit.Type == "RLIMIT_MEMLOCK" {
			return true
		}
	}
	return b.VM != nil || annotatedSandbox(b.Annotations)
}

const crioPrefix = "io.kubernetes.cri-o."

// podmanWrites are the annotations of CRI-O's that Podman writes as well. CRI-O writes others beside them.
var podmanWrites = []string{"Created", "TTY", "SandboxID", "ContainerType"}

// fromKubernetes reports whether a CRI made the container: containerd's and CRI-O's write annotations of their own.
func fromKubernetes(annotations map[string]string) bool {
	for key := range annotations {
		name, crio := strings.CutPrefix(key, crioPrefix)
		if strings.HasPrefix(key, "io.kubernetes.cri.") || crio && !slices.Contains(podmanWrites, name) {
			return true
		}
	}
	return false
}

// annotatedSandbox reports whether annotations are those of a runtime that isolates by a kernel of its own: Kata, gVisor, and crun with
// libkrun.
func annotatedSandbox(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, "io.katacontainers.") || strings.HasPrefix(key, "dev.gvisor.") || key == "run.oci.handler" && value == "krun" {
			return true
		}
	}
	return false
}

// sandboxes are what the names of the programs begin with whose process stands for a container in a sandbox.
var sandboxes = []string{
	"runsc", "kata", "containerd-shim-kata", "qemu", "cloud-hypervisor", "firecracker", "stratovirt", "crosvm", "dragonball", "krun",
}

// isSandbox reports whether a process is that of a sandbox, from the text of its /proc/PID/cmdline.
func isSandbox(command []byte) bool {
	program, _, _ := bytes.Cut(command, []byte{0})
	name := path.Base(string(program))
	return slices.ContainsFunc(sandboxes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// inCgroup reports whether a process is in the container's cgroup, from the text of its /proc/PID/cgroup. Of cgroup v1 one controller
// suffices. The path is relative to this process's cgroup namespace, so that of the spec may have others above it; crun with systemd
// adds one below.
func (b bundle) inCgroup(text []byte, id string) bool {
	wanted := cgroups(b.Linux.CgroupsPath, id)
	for line := range bytes.Lines(text) {
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(fields) != 3 {
			continue
		}
		at := path.Clean("/" + string(fields[2]))
		for _, want := range wanted {
			if strings.HasSuffix(at, want) || strings.HasSuffix(path.Dir(at), want) && path.Base(at) == "container" {
				return true
			}
		}
	}
	return false
}

// cgroups returns what the path of a container's cgroup may end with, each with a slash in front. cgroupsPath is as config.json has it: a
// path, or SLICE:PREFIX:NAME for systemd, which a runtime without systemd takes for a path. Without one, runtimes use the container's ID.
func cgroups(cgroupsPath, id string) []string {
	scope := func(prefix, name string) string { return "/" + prefix + "-" + name + ".scope" }
	parts := strings.Split(cgroupsPath, ":")
	switch {
	case strings.Trim(cgroupsPath, "/.") != "" && len(parts) != 3:
		return []string{path.Clean("/" + cgroupsPath)}
	case len(parts) == 3 && parts[2] != "" && !strings.Contains(parts[2], "/"):
		if strings.HasSuffix(parts[2], ".slice") {
			return []string{"/" + parts[2], "/" + cgroupsPath}
		}
		return []string{scope(parts[1], parts[2]), "/" + parts[2] + ".scope", "/" + cgroupsPath}
	case cgroupsPath == "" && id != "" && !strings.Contains(id, "/"):
		return []string{"/" + id, scope("runc", id), scope("crun", id)}
	}
	return nil
}
