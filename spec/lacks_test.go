// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

func TestGrantLacks(t *testing.T) {
	first := hca.Device{Path: "/dev/infiniband/uverbs0", Number: hca.Number{Major: 231, Minor: 192}}
	second := hca.Device{Path: "/dev/infiniband/uverbs1", Number: hca.Number{Major: 231, Minor: 193}}
	all := Grant{Memlock: 1 << 30, IPCLock: IPCLockUnlessDropped, Devices: []hca.Device{first, second}}
	holdsFirst := func(d hca.Device) bool { return d == first }
	holdsAll := func(hca.Device) bool { return true }
	for name, test := range map[string]struct {
		grant Grant
		has   Has
		want  Grant
	}{
		"nothing is granted":         {Grant{}, Has{}, Grant{}},
		"everything":                 {all, Has{Bounding: defaultCapabilities, Holds: func(hca.Device) bool { return false }}, all},
		"nothing":                    {all, Has{Memlock: 1 << 30, IPCLock: true, Holds: holdsAll}, Grant{}},
		"more than it was granted":   {all, Has{Memlock: Unlimited, IPCLock: true, Holds: holdsAll}, Grant{}},
		"memlock":                    {all, Has{Memlock: 1<<30 - 1, IPCLock: true, Holds: holdsAll}, Grant{Memlock: 1 << 30}},
		"one device":                 {all, Has{Memlock: 1 << 30, Holds: holdsFirst}, Grant{Devices: []hca.Device{second}}},
		"devices are not compared":   {all, Has{Memlock: 1 << 30}, Grant{}},
		"its author dropped all":     {Grant{IPCLock: IPCLockUnlessDropped}, Has{}, Grant{}},
		"in any case":                {Grant{IPCLock: IPCLockYes}, Has{}, Grant{IPCLock: IPCLockYes}},
		"its author did not request": {Grant{IPCLock: IPCLockIfRequested}, Has{Bounding: defaultCapabilities}, Grant{}},
		"its author requested": {Grant{IPCLock: IPCLockIfRequested}, Has{Bounding: []string{CapIPCLock}},
			Grant{IPCLock: IPCLockIfRequested}},
	} {
		if diff := cmp.Diff(test.want, test.grant.Lacks(test.has)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
