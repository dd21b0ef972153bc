// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
	"testing"
)

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
		`{"process":[]}`:                        "not a valid OCI runtime spec: process is not a JSON object",
		`{"process":{"rlimits":{}}}`:            "not a valid OCI runtime spec: process.rlimits is not a JSON array",
		`{"process":{"rlimits":[7]}}`:           "not a valid OCI runtime spec: process.rlimits[0] is not a JSON object",
		`{"process":{},"Process":{}}`:           `the spec contains the key "Process" twice`,
		`{"process":{"rlimits":[{"hard":-1}]}}`: "not a valid OCI runtime spec: process.rlimits[0] is not an rlimit",
	} {
		if _, _, err := Memlock([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Memlock(%s): %v; want %s", text, err, want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for text, want := range map[string]int64{
		`{}`: 0,
		`{"linux":{"resources":{"memory":null}}}`:                                                 0,
		`{"linux":{"resources":{"memory":{"swap":7}}}}`:                                           0,
		`{"linux":{"resources":{"memory":{"limit":null}}}}`:                                       0,
		`{"linux":{"resources":{"memory":{"limit":-1}}}}`:                                         0,
		`{"linux":{"resources":{"memory":{"limit":17179869184,"swap":7}}},"process":{"limit":5}}`: 16 << 30,
		`{"linux":{"resources":{"memory":{"limit":9223372036854775807}}}}`:                        1<<63 - 1,
	} {
		if got, err := MemoryLimit([]byte(text)); err != nil || got != want {
			t.Errorf("MemoryLimit(%s) = %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		``:                                      "the spec is empty",
		`{"linux":{"resources":{"memory":[]}}}`: "not a valid OCI runtime spec: linux.resources.memory is not a JSON object",
		`{"linux":{"resources":{"memory":{"limit":"1Gi"}}}}`: "not a valid OCI runtime spec: linux.resources.memory.limit is not a whole " +
			"number of bytes",
		`{"linux":{"resources":{"memory":{"limit":9223372036854775808}}}}`: "not a valid OCI runtime spec: linux.resources.memory.limit is not a whole " +
			"number of bytes",
	} {
		if got, err := MemoryLimit([]byte(text)); got != 0 || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("MemoryLimit(%s) = %d, %v; want %s", text, got, err, want)
		}
	}
}
