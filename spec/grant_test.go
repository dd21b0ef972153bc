// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

func TestGrantSays(t *testing.T) {
	for _, test := range []struct {
		grant      Grant
		text, json string
	}{
		{Grant{}, "nothing", `{}`},
		{Grant{Memlock: 16 << 30}, "memlock=16Gi", `{"memlock":"16Gi","memlockBytes":17179869184}`},
		{Grant{IPCLock: IPCLockUnlessDropped}, "ipc_lock=unless-dropped", `{"ipcLock":"unless-dropped"}`},
		{Grant{Devices: []hca.Device{{Path: "uverbs7"}}}, "devices=uverbs7", ``},
		{
			Grant{Memlock: Unlimited, IPCLock: IPCLockYes, Devices: []hca.Device{uverbs0, rdmaCM}},
			"memlock=unlimited ipc_lock=true devices=uverbs0,rdma_cm", ``,
		},
	} {
		if got := test.grant.String(); got != test.text {
			t.Errorf("%#v says %q, want %q", test.grant, got, test.text)
		}
		if test.json == "" {
			continue // a device's JSON is hca's own
		}
		got, err := json.Marshal(test.grant)
		if diff := cmp.Diff(test.json, string(got)); err != nil || diff != "" {
			t.Errorf("JSON of %s: %v (-want +got):\n%s", test.text, err, diff)
		}
	}
}
