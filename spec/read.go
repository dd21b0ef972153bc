// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import "encoding/json"

// Memlock reads RLIMIT_MEMLOCK, in bytes, from the JSON text of an OCI runtime spec. If the spec does not set
// RLIMIT_MEMLOCK, known is false.
func Memlock(text []byte) (limit Rlimit, known bool, err error) {
	process, err := descend(text, "process")
	if err != nil {
		return Rlimit{}, false, err
	}
	return memlock(process)
}

func memlock(process *object) (limit Rlimit, known bool, err error) {
	_, limits, err := rlimits(process)
	if err != nil {
		return Rlimit{}, false, err
	}
	for _, l := range limits {
		if l.Type == RlimitMemlock {
			// Runtimes set the rlimits in order, so the last entry for RLIMIT_MEMLOCK wins.
			limit = Rlimit{Soft: LimitOf(l.Soft), Hard: LimitOf(l.Hard)}
			known = true
		}
	}
	return limit, known, nil
}

// MemoryLimit reads the container's memory limit, in bytes, from the JSON text of an OCI runtime spec. If the spec does
// not set a memory limit, MemoryLimit returns 0.
func MemoryLimit(text []byte) (int64, error) {
	memory, err := descend(text, "linux", "resources", "memory")
	if err != nil {
		return 0, err
	}
	var limit int64
	if value := memory.get("limit"); value != nil && json.Unmarshal(value, &limit) != nil {
		return 0, typeError(memory.join("limit"), "a whole number of bytes")
	}
	return max(limit, 0), nil // -1 means no limit
}

// descend returns the object at a path of keys, or an empty object if the object is missing.
func descend(text []byte, keys ...string) (*object, error) {
	o, err := parseObject(wholeSpec, text)
	for _, key := range keys {
		if err != nil {
			return nil, err
		}
		o, err = o.child(key)
	}
	return o, err
}
