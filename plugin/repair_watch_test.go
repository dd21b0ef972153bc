// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/limits"
	"github.com/rdma-spec/rdma-spec/plugin/limits/limitstest"
	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// A runtime makes a container's first process, and sets its limit a moment later. Who looks in between reports nothing, and looks again
// soon; a limit that stays low is reported all the same, and one that was never granted is reported at once.
func TestContainerThatIsBeingStarted(t *testing.T) {
	root := hcatest.V100(t)
	ctr := verbsContainer(t, root)
	ctr.Id = limitstest.ID("young")
	for _, test := range []struct {
		name    string
		granted spec.Limit // when it was created
		age     time.Duration
		below   int
	}{
		{"just created", spec.Unlimited, 0, 0},
		{"created a while ago", spec.Unlimited, settling, 1},
		{"just created with less", 1 << 20, 0, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := node(map[string][]spec.Limit{"young": {1 << 23}})
			p := New(Options{Name: "rdma", Root: root, Log: quiet(), Policy: mustPolicy(t, "{}"), Limits: limits.On(table)})
			p.repair.add(containerOf(pod, ctr), ctr, spec.Grant{Memlock: test.granted}, time.Now().Add(-test.age))
			found := p.repair.look(t.Context(), p.policy())
			if len(found.below) != test.below || found.rdma != 1 {
				t.Errorf("%d of %d containers are below policy, want %d of 1", len(found.below), found.rdma, test.below)
			}
			if early := test.below == 0; found.settling != early {
				t.Errorf("it is looked at again soon: %t, want %t", found.settling, early)
			}
		})
	}
}
