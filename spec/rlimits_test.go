// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
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
		"another spelling is another limit": { // runc and crun refuse it: not ours to mend
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

func TestMemlock(t *testing.T) {
	for text, want := range map[string]*Rlimit{
		`{}`:                         nil,
		`{"process":null}`:           nil,
		`{"process":{"rlimits":[]}}`: nil,
		`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":7,"soft":5}]}}`:                                                           nil,
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":7,"soft":5}]}}`:                                                          {Soft: 5, Hard: 7},
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK"}]}}`:                                                                            {},
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":5},{"type":"RLIMIT_MEMLOCK","soft":3}]}}`:    {Soft: 3},
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":18446744073709551615}]},"process2":"1e400"}`: {Soft: Unlimited, Hard: Unlimited},
	} {
		limit, known, err := Memlock([]byte(text))
		if err != nil || known != (want != nil) || want != nil && limit != *want || want == nil && limit != (Rlimit{}) {
			t.Errorf("Memlock(%s) = %v, %v, %v; want %v", text, limit, known, err, want)
		}
	}
	for text, want := range map[string]string{
		``:                                      "the spec is empty",
		`{"process":[]}`:                        "process is no JSON object",
		`{"process":{"rlimits":{}}}`:            "process.rlimits is no JSON array",
		`{"process":{"rlimits":[7]}}`:           "process.rlimits[0] is no JSON object",
		`{"process":{},"Process":{}}`:           `the spec has the key "Process" twice`,
		`{"process":{"rlimits":[{"hard":-1}]}}`: "process.rlimits[0] is no rlimit",
	} {
		if _, _, err := Memlock([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Memlock(%s): %v; want %s", text, err, want)
		}
	}
}
