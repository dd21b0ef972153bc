// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"fmt"
)

// Decode reads a state, or a part of one, that another process has left: a JSON object with the number of its format,
// which may be another one than this process reads.
func Decode(left json.RawMessage, format int, into any) error {
	var of struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(left, &of); err != nil {
		return err
	}
	if of.Format != format {
		return fmt.Errorf("it has format %d, and this version reads format %d", of.Format, format)
	}
	return json.Unmarshal(left, into)
}
