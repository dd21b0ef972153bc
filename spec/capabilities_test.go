// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

func TestIPCLockIsAdded(t *testing.T) {
	defaults := list(defaultCapabilities...)
	withIPCLock := list(append(slices.Clone(defaultCapabilities), CapIPCLock)...)
	for name, test := range map[string]struct {
		mode               IPCLock
		sets               CapabilitySets
		capabilities, want string
	}{
		"to the sets of a base spec": {
			IPCLockYes, BaseSets,
			`{"bounding":["CAP_CHOWN"],"inheritable":["CAP_CHOWN"]}`,
			`{"bounding":["CAP_CHOWN","CAP_IPC_LOCK"],"inheritable":["CAP_CHOWN"],"effective":["CAP_IPC_LOCK"],"permitted":["CAP_IPC_LOCK"]}`,
		},
		"to the sets of a stored spec": {
			IPCLockYes, AllSets,
			`{}`,
			`{"bounding":["CAP_IPC_LOCK"],"effective":["CAP_IPC_LOCK"],"permitted":["CAP_IPC_LOCK"],"inheritable":["CAP_IPC_LOCK"],"ambient":["CAP_IPC_LOCK"]}`,
		},
		"once to each set": {
			IPCLockYes, BaseSets,
			`{"bounding":["CAP_IPC_LOCK","CAP_CHOWN"],"effective":["CAP_IPC_LOCK"],"permitted":[]}`,
			`{"bounding":["CAP_IPC_LOCK","CAP_CHOWN"],"effective":["CAP_IPC_LOCK"],"permitted":["CAP_IPC_LOCK"]}`,
		},
		"unless dropped: defaults": {
			IPCLockUnlessDropped, CapabilitySets{"bounding", "ambient"},
			`{"bounding":` + defaults + `}`,
			`{"bounding":` + withIPCLock + `,"ambient":["CAP_IPC_LOCK"]}`,
		},
		"unless dropped: all dropped": {
			IPCLockUnlessDropped, AllSets,
			`{"bounding":[],"effective":[]}`,
			`{"bounding":[],"effective":[]}`,
		},
		"unless dropped: all dropped, some added back": {
			IPCLockUnlessDropped, AllSets,
			`{"bounding":["CAP_NET_BIND_SERVICE","CAP_SYS_ADMIN"]}`,
			`{"bounding":["CAP_NET_BIND_SERVICE","CAP_SYS_ADMIN"]}`,
		},
		"unless dropped: no sets at all": {
			IPCLockUnlessDropped, AllSets,
			`null`,
			`null`,
		},
		"unless dropped: all dropped, IPC_LOCK added back": {
			IPCLockUnlessDropped, CapabilitySets{"bounding", "ambient"},
			`{"bounding":["CAP_IPC_LOCK"]}`,
			`{"bounding":["CAP_IPC_LOCK"],"ambient":["CAP_IPC_LOCK"]}`,
		},
		"if requested: defaults": {
			IPCLockIfRequested, AllSets,
			`{"bounding":` + defaults + `}`,
			`{"bounding":` + defaults + `}`,
		},
		"if requested: added": {
			IPCLockIfRequested, CapabilitySets{"bounding", "ambient"},
			`{"bounding":` + withIPCLock + `}`,
			`{"bounding":` + withIPCLock + `,"ambient":["CAP_IPC_LOCK"]}`,
		},
		"if requested: all dropped, IPC_LOCK added back": {
			IPCLockIfRequested, CapabilitySets{"bounding", "ambient"},
			`{"bounding":["CAP_IPC_LOCK"]}`,
			`{"bounding":["CAP_IPC_LOCK"],"ambient":["CAP_IPC_LOCK"]}`,
		},
		"if requested: only an ambient one": {
			IPCLockIfRequested, AllSets,
			`{"bounding":[],"ambient":["CAP_IPC_LOCK"]}`,
			`{"bounding":[],"ambient":["CAP_IPC_LOCK"]}`,
		},
		"although dropped": {
			IPCLockYes, CapabilitySets{"bounding"},
			`{"bounding":[]}`,
			`{"bounding":["CAP_IPC_LOCK"]}`,
		},
		"not": {
			IPCLockNo, AllSets,
			`{"bounding":["CAP_CHOWN"]}`,
			`{"bounding":["CAP_CHOWN"]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := mustApply(t, Grant{IPCLock: test.mode}, `{"process":{"capabilities":`+test.capabilities+`}}`, test.sets)
			expect.Equal(t, "Apply", `{"process":{"capabilities":`+test.want+`}}`, got)
		})
	}
}

// The boundary is half of the 14 default capabilities.
func TestDroppedAll(t *testing.T) {
	for left := range len(defaultCapabilities) + 1 {
		if got, want := DroppedAll(append([]string{"CAP_SYS_ADMIN", CapIPCLock}, defaultCapabilities[:left]...)),
			left < 7; got != want {
			t.Errorf("DroppedAll of a set with %d default capabilities = %v, want %v", left, got, want)
		}
	}
	// CRI-O's default has nine of them.
	if DroppedAll([]string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_KILL"}) {
		t.Error("DroppedAll takes CRI-O's default capabilities for dropped ones")
	}
}

// list returns names as a JSON array.
func list(names ...string) string {
	text, err := json.Marshal(names)
	if err != nil {
		panic(fmt.Sprint("names do not encode: ", err))
	}
	return string(text)
}

// TestBoundingSet: the result is the same as with containerd and CRI-O, whether the manifest has the names in upper or
// lower case.
func TestBoundingSet(t *testing.T) {
	for _, tt := range []struct {
		name            string
		add, drop       []string
		droppedAll, own bool
	}{
		{"nothing said", nil, nil, false, false},
		{"all dropped", nil, []string{"ALL"}, true, false},
		{"all dropped, small letters", nil, []string{"all"}, true, false},
		{"all dropped, one added", []string{"net_bind_service"}, []string{"All"}, true, false},
		{"all dropped, IPC_LOCK added", []string{"ipc_lock"}, []string{"all"}, true, true},
		{"all added", []string{"all"}, nil, false, true},
		{"all added but one", []string{"ALL"}, []string{"ipc_lock"}, false, false},
		{"a few dropped", nil, []string{"chown", "KILL"}, false, false},
		{"most dropped by name", nil, []string{"chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid",
			"setuid"}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := BoundingSet(tt.add, tt.drop)
			if own := slices.Contains(set, CapIPCLock); DroppedAll(set) != tt.droppedAll || own != tt.own {
				t.Errorf("%q: dropped all %t, own IPC_LOCK %t; want %t, %t", set, DroppedAll(set), own, tt.droppedAll, tt.own)
			}
		})
	}
}
