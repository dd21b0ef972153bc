// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// RlimitMemlock is the rlimit's type, in the one spelling that runc and crun accept.
const RlimitMemlock = "RLIMIT_MEMLOCK"

// rlimits returns process.rlimits.
func rlimits(process *object) ([]json.RawMessage, []specs.POSIXRlimit, error) {
	return objects[specs.POSIXRlimit](process, "rlimits",
		"an rlimit with a type, and hard and soft from 0 to 18446744073709551615")
}

// raiseMemlock makes process.rlimits hold RLIMIT_MEMLOCK exactly once, soft and hard at least want.
func raiseMemlock(process *object, want Limit) error {
	texts, limits, err := rlimits(process)
	if err != nil {
		return err
	}
	var (
		kept    []json.RawMessage
		current Rlimit
		found   int
		at      int // of the first one in kept
	)
	for i, limit := range limits {
		if limit.Type == RlimitMemlock {
			current = Rlimit{Soft: max(current.Soft, LimitOf(limit.Soft)), Hard: max(current.Hard, LimitOf(limit.Hard))}
			if found++; found > 1 {
				continue
			}
			at = len(kept)
		}
		kept = append(kept, texts[i])
	}
	raised, changed := current.Raise(want)
	if !changed && found == 1 {
		return nil
	}
	if found == 0 {
		at = len(kept)
		kept = append(kept, encode(map[string]string{"type": RlimitMemlock}))
	}
	entry, err := parseObject("process.rlimits", kept[at])
	if err != nil {
		return err
	}
	entry.set("hard", encode(uint64(raised.Hard)))
	entry.set("soft", encode(uint64(raised.Soft)))
	kept[at] = entry.text
	process.setList("rlimits", kept)
	return nil
}
