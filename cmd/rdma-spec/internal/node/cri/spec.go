// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Spec has the limits and capabilities of a container's OCI spec.
type Spec struct {
	Memlock      spec.Rlimit
	MemlockKnown bool     // the spec sets it
	Bounding     []string // capabilities: CAP_CHOWN …
	GIDIndex     *int     // NCCL_IB_GID_INDEX, the only variable of the environment that is read
}

// verbose is the part of a runtime's verbose status that is read. containerd and CRI-O both write it, under the key
// "info".
type verbose struct {
	PID         int `json:"pid"`
	RuntimeSpec *struct {
		Process struct {
			GIDIndex     gidIndex            `json:"env"`
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

// gidIndex is what an environment in JSON has of NCCL_IB_GID_INDEX. It is found without decoding the others, which take
// most of a spec.
type gidIndex struct{ number *int }

var gidIndexForm = regexp.MustCompile(`"NCCL_IB_GID_INDEX=([0-9]{1,4})"`) // NCCL chooses where it is negative

// UnmarshalJSON implements json.Unmarshaler.
func (g *gidIndex) UnmarshalJSON(text []byte) error {
	if set := gidIndexForm.FindSubmatch(text); set != nil {
		number, err := strconv.Atoi(string(set[1]))
		g.number = &number
		return err
	}
	return nil
}

// read reads a verbose status.
func (c *Container) read(info map[string]string) error {
	text, found := info["info"]
	if !found {
		return errors.New("the runtime gives no verbose status")
	}
	var said verbose
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return fmt.Errorf("the runtime's verbose status cannot be read: %w", err)
	}
	c.PID = said.PID
	if said.RuntimeSpec == nil {
		return errors.New("the runtime's verbose status has no runtimeSpec, which names the container's devices")
	}
	process, linux := said.RuntimeSpec.Process, said.RuntimeSpec.Linux
	c.AllDevices = policy.AllDevices(linux.Resources.Devices)
	c.MemoryLimit = linux.Resources.Memory.Limit
	for _, d := range linux.Devices {
		c.Devices = append(c.Devices, policy.Device{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
	}
	for _, r := range process.Rlimits {
		if r.Type == spec.RlimitMemlock { // the last one wins
			c.Spec.Memlock, c.Spec.MemlockKnown = spec.Rlimit{Soft: spec.LimitOf(r.Soft), Hard: spec.LimitOf(r.Hard)}, true
		}
	}
	c.Spec.Bounding = process.Capabilities.Bounding
	c.Spec.GIDIndex = process.GIDIndex.number
	return nil
}
