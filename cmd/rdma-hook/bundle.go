// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"
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
	return b.VM != nil || sandbox.Annotated(b.Annotations)
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

// isSandbox reports whether a process is that of a sandbox, from the text of its /proc/PID/cmdline.
func isSandbox(command []byte) bool {
	program, _, _ := bytes.Cut(command, []byte{0})
	return sandbox.Program(string(program))
}
