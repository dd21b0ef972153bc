// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// deviceJSON is a Device on paper. The mode is written as people read modes,
// "0666", not as the decimal number that os.FileMode would become.
type deviceJSON struct {
	Kind    Kind   `json:"kind"`
	Path    string `json:"path"`
	Major   uint32 `json:"major"`
	Minor   uint32 `json:"minor"`
	Mode    string `json:"mode"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	HCA     string `json:"hca,omitempty"`
	Port    int    `json:"port,omitempty"`
	Problem string `json:"problem,omitempty"`
	Missing bool   `json:"missing,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (d Device) MarshalJSON() ([]byte, error) {
	return json.Marshal(deviceJSON{
		Kind: d.Kind, Path: d.Path, Major: d.Major, Minor: d.Minor,
		Mode: fmt.Sprintf("%04o", d.Mode.Perm()), UID: d.UID, GID: d.GID,
		HCA: d.HCA, Port: d.Port, Problem: d.Problem, Missing: d.Missing,
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Device) UnmarshalJSON(data []byte) error {
	var j deviceJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	mode, err := strconv.ParseUint(j.Mode, 8, 9)
	if err != nil {
		return fmt.Errorf("device %q: mode %q is not octal permission bits such as \"0666\"", j.Path, j.Mode)
	}
	*d = Device{
		Kind: j.Kind, Path: j.Path, Number: Number{Major: j.Major, Minor: j.Minor},
		Mode: os.FileMode(mode), UID: j.UID, GID: j.GID,
		HCA: j.HCA, Port: j.Port, Problem: j.Problem, Missing: j.Missing,
	}
	return nil
}
