// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package requirement

import "testing"

func TestRequirements(t *testing.T) {
	for _, test := range []struct {
		name, version         string
		adjusting, validating bool
	}{
		{"containerd", "v1.7.0", false, false},
		{"containerd", "1.7.6", false, false},
		{"containerd", "v1.7.7", true, false},
		{"containerd", "v1.7.35", true, false},
		{"containerd", "1.7.24~ds1", true, false},
		{"containerd", "v2.1.9", true, false},
		{"containerd", "v2.2.0", true, true},
		{"containerd", "v2.4.2", true, true},
		{"containerd", "v10.0.0", true, true},
		{"containerd", "devel", true, true},
		{"cri-o", "1.28.9", false, false},
		{"cri-o", "1.29.0", true, false},
		{"cri-o", "1.34.0", true, true},
		{"docker", "29.4.0", false, false},
		{"somebody-else", "0.0.1", true, true},
	} {
		if err := Adjusting.Check(test.name, test.version); (err == nil) != test.adjusting {
			t.Errorf("to adjust under %s %s: %v", test.name, test.version, err)
		}
		if err := Validating.Check(test.name, test.version); (err == nil) != test.validating {
			t.Errorf("to validate under %s %s: %v", test.name, test.version, err)
		}
	}
}
