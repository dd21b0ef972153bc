// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec"
)

// Under a runtime that may not raise limits, what the policy gives is cut to what can start, and said. IPC_LOCK is what
// it is beside the policy's own memlock.
func TestStartable(t *testing.T) {
	holder := Container{Devices: []Device{heldVerbs(0)}}
	for name, test := range map[string]struct {
		config string
		most   spec.Limit // 0: unknown
		want   *spec.Grant
		warns  bool
	}{
		"unknown":           {"", 0, unlimited(), false},
		"it may raise them": {"", spec.Unlimited, unlimited(), false},
		"cut":               {"", 8 << 20, &spec.Grant{Memlock: 8 << 20, IPCLock: spec.IPCLockUnlessDropped}, true},
		"a number is cut":   {"memlock: 1Gi", 8 << 20, &spec.Grant{Memlock: 8 << 20}, true},
		"a number fits":     {"memlock: 1Gi", 1 << 30, &spec.Grant{Memlock: 1 << 30}, false},
		"left unchanged":    {"rules: [{match: {namespaces: ['*']}, memlock: unchanged}]", 8 << 20, &spec.Grant{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := policyOf(t, test.config).Decide(holder, startable(test.most)(t))
			if diff := cmp.Diff(test.want, d.Grant); diff != "" || (len(d.Warnings) > 0) != test.warns {
				t.Errorf("warnings %q, refusal %v (-want +got):\n%s", d.Warnings, d.Refusal, diff)
			}
		})
	}
}
