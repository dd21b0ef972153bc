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

// othersSetMemlock reports whether another program sets the container's memlock, no matter what created the container.
func (b bundle) othersSetMemlock() bool {
	for _, limit := range b.Process.Rlimits {
		if limit.Type == "RLIMIT_MEMLOCK" {
			return true
		}
	}
	return b.VM != nil || sandbox.Annotated(b.Annotations)
}

const crioPrefix = "io.kubernetes.cri-o."

// podmanWrites are the CRI-O annotations that Podman also writes. CRI-O writes additional annotations.
var podmanWrites = []string{"Created", "TTY", "SandboxID", "ContainerType"}

// fromKubernetes reports whether a container was created through CRI. containerd and CRI-O each write their own
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

// isSandbox reports whether a process belongs to a sandbox, based on the text of /proc/PID/cmdline.
func isSandbox(command []byte) bool {
	program, _, _ := bytes.Cut(command, []byte{0})
	return sandbox.Program(string(program))
}
