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

// bundle is the part of config.json that the hook needs.
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

// othersSetMemlock reports whether another program decides the container's memlock, whatever created the container.
func (b bundle) othersSetMemlock() bool {
	for _, limit := range b.Process.Rlimits {
		if limit.Type == "RLIMIT_MEMLOCK" {
			return true
		}
	}
	return b.VM != nil || sandbox.Annotated(b.Annotations)
}

const crioPrefix = "io.kubernetes.cri-o."

// podmanWrites are those of CRI-O's annotations that Podman writes too. CRI-O also writes others.
var podmanWrites = []string{"Created", "TTY", "SandboxID", "ContainerType"}

// fromKubernetes reports whether a CRI created the container: containerd's and CRI-O's each write their own
// annotations.
func fromKubernetes(annotations map[string]string) bool {
	for key := range annotations {
		name, crio := strings.CutPrefix(key, crioPrefix)
		if strings.HasPrefix(key, "io.kubernetes.cri.") || crio && !slices.Contains(podmanWrites, name) {
			return true
		}
	}
	return false
}

// isSandbox reports from the text of /proc/PID/cmdline whether the process is a sandbox's.
func isSandbox(command []byte) bool {
	program, _, _ := bytes.Cut(command, []byte{0})
	return sandbox.Program(string(program))
}
