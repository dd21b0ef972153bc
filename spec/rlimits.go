// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// RlimitMemlock is the rlimit's type, in the one spelling that runc and crun accept.
const RlimitMemlock = "RLIMIT_MEMLOCK"

// raiseMemlock makes process.rlimits hold RLIMIT_MEMLOCK exactly once, soft and hard at least want.
func raiseMemlock(process *object, want Limit) error {
	limits, err := process.list("rlimits")
	if err != nil {
		return err
	}
	var (
		kept  []json.RawMessage
		found []specs.POSIXRlimit
		at    int
	)
	for i, raw := range limits {
		var limit specs.POSIXRlimit
		if err := json.Unmarshal(raw, &limit); err != nil {
			return typeError(fmt.Sprintf("process.rlimits[%d]", i), "rlimit with a type, hard and soft")
		}
		if limit.Type != RlimitMemlock {
			kept = append(kept, raw)
			continue
		}
		if found == nil {
			at = len(kept)
			kept = append(kept, raw)
		}
		found = append(found, limit)
	}
	var current Rlimit
	for _, limit := range found {
		current = Rlimit{Soft: max(current.Soft, Limit(limit.Soft)), Hard: max(current.Hard, Limit(limit.Hard))}
	}
	raised, changed := current.Raise(want)
	if !changed && len(found) == 1 {
		return nil
	}
	entry := encode(specs.POSIXRlimit{Type: RlimitMemlock, Hard: uint64(raised.Hard), Soft: uint64(raised.Soft)})
	if found == nil {
		kept = append(kept, entry)
	} else {
		kept[at] = entry
	}
	process.setList("rlimits", kept)
	return nil
}

// Memlock reads RLIMIT_MEMLOCK from the JSON text of an OCI runtime spec; known is false where the spec does not set it.
func Memlock(text []byte) (limit Rlimit, known bool, err error) {
	root, err := parseObject("the spec", text)
	if err != nil {
		return Rlimit{}, false, err
	}
	process, err := root.child("process")
	if err != nil {
		return Rlimit{}, false, err
	}
	raw, err := process.list("rlimits")
	if err != nil {
		return Rlimit{}, false, err
	}
	for i := range raw {
		var entry specs.POSIXRlimit
		if err := json.Unmarshal(raw[i], &entry); err != nil {
			return Rlimit{}, false, typeError(fmt.Sprintf("process.rlimits[%d]", i), "rlimit with a type, hard and soft")
		}
		if entry.Type == RlimitMemlock {
			// Runtimes apply one after the other: the last one wins.
			limit, known = Rlimit{Soft: Limit(entry.Soft), Hard: Limit(entry.Hard)}, true
		}
	}
	return limit, known, nil
}
