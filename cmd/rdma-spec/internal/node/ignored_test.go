// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

// A star stands for slashes as well, and an entry without an object is about the node alone.
func TestIgnoredMatches(t *testing.T) {
	for _, test := range []struct {
		entry         Ignored
		check, object string
		want          bool
	}{
		{Ignored{Check: "container-*", Object: "container ml/*"}, "container-memlock", "container ml/train-0 worker", true},
		{Ignored{Check: "*", Object: "*"}, "base-spec", "runtime /run/containerd/containerd.sock", true},
		{Ignored{Check: "port-active", Object: "HCA mlx5_?"}, "port-active", "HCA mlx5_10", false},
		{Ignored{Check: "port-active", Object: `HCA \[a\*`}, "port-active", "HCA [a*", true},
		{Ignored{Check: "port-active"}, "port-active", "HCA mlx5_0 port 1", false},
		{Ignored{Check: "rdma-cm-module"}, "rdma-cm-module", "", true},
		{Ignored{Check: "port"}, "port-active", "", false},
	} {
		if got := test.entry.Matches(test.check, test.object); got != test.want {
			t.Errorf("%s: %s %q: %t", test.entry, test.check, test.object, got)
		}
	}
}
