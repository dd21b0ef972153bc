// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/sandbox"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Spec contains the limits and capabilities of a container's OCI spec.
type Spec struct {
	Memlock      spec.Rlimit
	MemlockKnown bool     // the spec sets Memlock
	Bounding     []string // capabilities: CAP_CHOWN …
	Env          Env
}

// verbose is the part of a runtime's verbose status that this package reads. Both containerd and CRI-O write it under
// the key "info".
type verbose struct {
	PID         int    `json:"pid"`
	RuntimeType string `json:"runtimeType"` // containerd's
	RuntimeSpec *struct {
		Annotations map[string]string `json:"annotations"`
		Process     struct {
			Env          Env                 `json:"env"`
			Rlimits      []specs.POSIXRlimit `json:"rlimits"`
			Capabilities struct {
				Bounding []string `json:"bounding"`
			} `json:"capabilities"`
		} `json:"process"`
		Linux struct {
			Devices   []specs.LinuxDevice `json:"devices"`
			Resources struct {
				Devices []specs.LinuxDeviceCgroup `json:"devices"`
				Memory  struct {
					Limit int64 `json:"limit"`
				} `json:"memory"`
			} `json:"resources"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

// Env contains the environment variables of a container that select HCAs, GPUs, and interfaces. Other variables are not
// read.
type Env map[string]string

// environment matches these variables in JSON. A value with a character that JSON escapes cannot be a device name.
var environment = regexp.MustCompile(
	`"(NCCL_IB_HCA|NCCL_IB_GID_INDEX|NCCL_SOCKET_IFNAME|NVIDIA_MOFED|NVIDIA_VISIBLE_DEVICES|HABANA_VISIBLE_DEVICES|` +
		`UCX_NET_DEVICES)=([^"\\]{0,1000})"`)

// UnmarshalJSON implements json.Unmarshaler. It does not decode the other variables, which take up most of a spec.
func (e *Env) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("{")) { // the format in an archive
		return json.Unmarshal(text, (*map[string]string)(e))
	}
	for _, form := range environment.FindAllSubmatch(text, -1) {
		if *e == nil {
			*e = Env{}
		}
		name := string(form[1])
		value := string(form[2])
		if strings.HasSuffix(name, "_VISIBLE_DEVICES") && !slices.Contains([]string{"all", "none", "void", ""}, value) {
			value = "some" // hides serial numbers
		}
		(*e)[name] = value
	}
	return nil
}

// read reads a verbose status.
func (c *Container) read(info map[string]string) error {
	text, found := info["info"]
	if !found {
		return errors.New("the runtime reports no verbose status")
	}
	var said verbose
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return fmt.Errorf("the runtime's verbose status cannot be read: %w", err)
	}
	c.PID = said.PID
	if said.RuntimeSpec == nil {
		return errors.New("the runtime's verbose status does not contain runtimeSpec, the field that lists the " +
			"container's devices")
	}
	c.Sandboxed = sandbox.Type(said.RuntimeType) || sandbox.Annotated(said.RuntimeSpec.Annotations)
	process := said.RuntimeSpec.Process
	linux := said.RuntimeSpec.Linux
	c.AllDevices = policy.AllDevices(linux.Resources.Devices)
	c.MemoryLimit = linux.Resources.Memory.Limit
	for _, d := range linux.Devices {
		c.Devices = append(c.Devices, policy.Device{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
	}
	for _, r := range process.Rlimits {
		if r.Type == spec.RlimitMemlock { // the last entry applies
			c.Spec.Memlock = spec.Rlimit{Soft: spec.LimitOf(r.Soft), Hard: spec.LimitOf(r.Hard)}
			c.Spec.MemlockKnown = true
		}
	}
	c.Spec.Bounding = process.Capabilities.Bounding
	c.Spec.Env = process.Env
	c.MOFED = policy.MOFED([]string{policy.MOFEDVariable + process.Env["NVIDIA_MOFED"]})
	return nil
}
