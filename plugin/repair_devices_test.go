// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

func TestDeviceListKeepsAll(t *testing.T) {
	for name, devices := range map[string][]policy.Device{
		"none": nil,
		"one":  {{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192}},
		"odd": {
			{Path: "/dev/\x00 \xff", Type: "u", Major: -1, Minor: math.MaxInt64},
			{Type: "c", Major: math.MinInt64},
			{Path: string(make([]byte, 300)), Type: "c"},
		},
	} {
		if diff := cmp.Diff(devices, pack(devices).devices()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := pack(devices).empty(); got != (len(devices) == 0) {
			t.Errorf("%s: empty is %v", name, got)
		}
	}
	a, b := policy.Device{Path: "/dev/a", Type: "c", Major: 1}, policy.Device{Path: "/dev/b", Type: "c", Major: 1}
	packed, same, other := pack([]policy.Device{a, b}), pack([]policy.Device{a, b}), pack([]policy.Device{b, a})
	if packed != same || packed == other {
		t.Error("lists with the same devices are to be one, and others not")
	}
}
