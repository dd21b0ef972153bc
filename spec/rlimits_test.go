// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemlockIsSet(t *testing.T) {
	const max = "18446744073709551615"
	for name, test := range map[string]struct {
		grant         Limit
		rlimits, want string
	}{
		"added behind the others": {
			64 << 20,
			`[{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
			`[{"type":"RLIMIT_NOFILE","hard":9,"soft":9},{"type":"RLIMIT_MEMLOCK","hard":67108864,"soft":67108864}]`,
		},
		"raised in its place": {
			Unlimited,
			`[{"type":"RLIMIT_MEMLOCK","hard":65536,"soft":65536},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
		},
		"a higher one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108865}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108865}]`,
		},
		"a higher hard one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":1}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":67108864}]`,
		},
		"once, though it stood there twice": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1},{"type":"RLIMIT_NOFILE","hard":9,"soft":9},{"type":"RLIMIT_MEMLOCK","hard":2,"soft":2}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":67108864,"soft":67108864},{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]`,
		},
		"once, though both suffice": {
			1,
			`[{"type":"RLIMIT_MEMLOCK","hard":5,"soft":3},{"type":"RLIMIT_MEMLOCK","hard":4,"soft":4}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":5,"soft":4}]`,
		},
		"of two, the higher one is not lowered": {
			64 << 20,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `},{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]`,
			`[{"type":"RLIMIT_MEMLOCK","hard":` + max + `,"soft":` + max + `}]`,
		},
		"another spelling is another limit": { // runc and crun refuse it: not ours to cure
			1,
			`[{"type":"rlimit_memlock","hard":5,"soft":5}]`,
			`[{"type":"rlimit_memlock","hard":5,"soft":5},{"type":"RLIMIT_MEMLOCK","hard":1,"soft":1}]`,
		},
		"what an entry says besides is kept": {
			2,
			`[{"why":"<1e400>","n":1e400,"type":"RLIMIT_MEMLOCK","soft":1}]`,
			`[{"why":"<1e400>","n":1e400,"type":"RLIMIT_MEMLOCK","soft":2,"hard":2}]`,
		},
		"without soft and hard": {
			2,
			`[{"type":"RLIMIT_MEMLOCK","soft":null}]`,
			`[{"type":"RLIMIT_MEMLOCK","soft":2,"hard":2}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := mustApply(t, Grant{Memlock: test.grant}, `{"process":{"rlimits":`+test.rlimits+`}}`, nil)
			if diff := cmp.Diff(`{"process":{"rlimits":`+test.want+`}}`, got); diff != "" {
				t.Errorf("Apply (-want +got):\n%s", diff)
			}
		})
	}
}
