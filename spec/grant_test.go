// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"testing"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

func TestGrantSays(t *testing.T) {
	for want, grant := range map[string]Grant{
		"nothing":                 {},
		"memlock=16Gi":            {Memlock: 16 << 30},
		"ipc_lock=unless-dropped": {IPCLock: IPCLockUnlessDropped},
		"memlock=unlimited ipc_lock=true devices=uverbs0,rdma_cm": {Memlock: Unlimited, IPCLock: IPCLockYes,
			Devices: []hca.Device{uverbs0, rdmaCM}},
	} {
		if got := grant.String(); got != want {
			t.Errorf("%#v says %q, want %q", grant, got, want)
		}
	}
}

// JSON contains limits as numbers of bytes for programs, and as words for people.
func TestMarshalJSON_wordsAndBytes(t *testing.T) {
	for want, value := range map[string]any{
		`{"soft":"8Mi","softBytes":8388608,"hard":"unlimited","hardBytes":18446744073709551615}`: Rlimit{Soft: 8 << 20,
			Hard: Unlimited},
		`{"soft":"0","softBytes":0,"hard":"1Ki","hardBytes":1024}`:       Rlimit{Hard: 1024},
		`{"memlock":"16Gi","memlockBytes":17179869184,"ipcLock":"true"}`: Grant{Memlock: 16 << 30, IPCLock: IPCLockYes},
		`{"memlock":"unlimited","memlockBytes":18446744073709551615}`:    &Grant{Memlock: Unlimited},
		`{"ipcLock":"unless-dropped"}`:                                   Grant{IPCLock: IPCLockUnlessDropped},
		`{}`:                                                             Grant{},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
}
