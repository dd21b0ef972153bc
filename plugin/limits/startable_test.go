// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"testing"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A runtime can start what it may set: anything with CAP_SYS_RESOURCE in the node's user namespace, else its hard limit.
func TestStartable(t *testing.T) {
	const all, without = "000001ffffffffff", "000001fffeffffff"
	const node, nested = "         0          0 4294967295\n", "         0     100000      65536\n"
	for name, test := range map[string]struct {
		capabilities, uids, hard string
		want                     spec.Limit
	}{
		"root":                    {all, node, "8388608", spec.Unlimited},
		"a bounding set":          {without, node, "8388608", 8 << 20},
		"a bounding set, raised":  {without, node, "unlimited", spec.Unlimited},
		"a user namespace":        {all, nested, "8388608", 8 << 20},
		"no namespaces to ask of": {without, "", "65536", 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			tree := map[string]string{"7/status": "Name:\tcontainerd\nCapEff:\t" + test.capabilities + "\n",
				"7/limits": "Max locked memory         65536                " + test.hard + "            bytes     \n"}
			if test.uids != "" {
				tree["7/uid_map"] = test.uids
			}
			if got, err := files(t, tree).Startable(7); got != test.want || err != nil {
				t.Errorf("it can start %s, %v, want %s", got, err, test.want)
			}
		})
	}
	if got, err := New(scratch.Folder(t)).Startable(7); err == nil {
		t.Errorf("of a process that is not there: %s", got)
	}
}
