// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limit is a value of RLIMIT_MEMLOCK in bytes.
type Limit uint64

// Unlimited is RLIM_INFINITY as the OCI runtime spec and NRI represent it.
const Unlimited Limit = math.MaxUint64

// LimitOf returns the limit for a number of bytes. From 2^63-1 on, it returns Unlimited, since some configuration
// formats have no larger number.
func LimitOf(bytes uint64) Limit {
	if bytes >= math.MaxInt64 {
		return Unlimited
	}
	return Limit(bytes)
}

// maxQuantityLength limits the text that the quantity parser gets, in bytes. The longest useful quantity is much
// shorter.
const maxQuantityLength = 32

// hugeExponent matches quantities such as 1e-99999999, for which the quantity parser needs minutes. None of them can be
// a size on a node.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// ParseLimit parses "unlimited", a number of bytes up to 18446744073709551615 (see LimitOf), or a Kubernetes quantity
// of bytes below 8Ei: 500M, 0.5Gi, 16Gi. The error says what is wrong with the value, and gives valid examples.
func ParseLimit(text string) (Limit, error) {
	fail := func(format string, args ...any) (Limit, error) {
		return 0, fmt.Errorf("memlock "+format+": write unlimited, or bytes such as 16Gi or 500M", args...)
	}
	if text == "unlimited" {
		return Unlimited, nil
	}
	if len(text) > maxQuantityLength {
		return fail("is %d characters long", len(text))
	}
	if bytes, err := strconv.ParseUint(text, 10, 64); err == nil && bytes > 0 {
		return LimitOf(bytes), nil
	}
	if hugeExponent.MatchString(text) {
		return fail("%q is not a size", text)
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return fail("%q is not a size", text)
	}
	switch {
	case quantity.Sign() <= 0:
		return fail("%q is not positive", text)
	case quantity.CmpInt64(math.MaxInt64) >= 0: // the parser returns MaxInt64 for some larger values
		return fail("%q is not less than 8Ei", text)
	case quantity.CmpInt64(quantity.Value()) != 0: // Value rounds up
		return fail("%q is not a whole number of bytes", text)
	}
	return Limit(quantity.Value()), nil
}

// String returns a text that ParseLimit parses: "unlimited", or the shortest exact size: "16Gi", "8Mi", "65537".
func (l Limit) String() string {
	if l == Unlimited {
		return "unlimited"
	}
	return resource.NewQuantity(int64(l), resource.BinarySI).String()
}

// Finite reports whether the limit is a number of bytes, not Unlimited.
func (l Limit) Finite() bool { return l != Unlimited }

// MarshalJSON writes the limit as String does.
func (l Limit) MarshalJSON() ([]byte, error) { return json.Marshal(l.String()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Limit) UnmarshalJSON(text []byte) error {
	var words string
	if err := json.Unmarshal(text, &words); err != nil {
		return err
	}
	if number, err := strconv.ParseUint(words, 10, 64); err == nil {
		*l = LimitOf(number)
		return nil
	}
	limit, err := ParseLimit(words)
	*l = limit
	return err
}

// Rlimit is a process's RLIMIT_MEMLOCK in bytes.
type Rlimit struct {
	// Soft is the limit that the kernel enforces.
	Soft Limit `json:"soft"`
	// Hard is the limit up to which the process can raise Soft.
	Hard Limit `json:"hard"`
}

// MarshalJSON writes both limits both as a text and in bytes. Unlimited is the largest uint64, as in the kernel.
func (l Rlimit) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Soft      Limit  `json:"soft"`
		SoftBytes uint64 `json:"softBytes"`
		Hard      Limit  `json:"hard"`
		HardBytes uint64 `json:"hardBytes"`
	}{l.Soft, uint64(l.Soft), l.Hard, uint64(l.Hard)})
}

// Raise returns the RLIMIT_MEMLOCK that lets a process with the current limit lock at least want bytes, and whether it
// differs from the current limit. It never lowers the soft or the hard limit.
func (current Rlimit) Raise(want Limit) (Rlimit, bool) {
	if current.Soft >= want { // the kernel enforces the soft limit
		return current, false
	}
	return Rlimit{Soft: want, Hard: max(current.Hard, want)}, true
}

// RlimitMemlock is the rlimit's type in the only spelling that both runc and crun accept.
const RlimitMemlock = "RLIMIT_MEMLOCK"

// rlimits returns process.rlimits.
func rlimits(process *object) ([]json.RawMessage, []specs.POSIXRlimit, error) {
	return objects[specs.POSIXRlimit](process, "rlimits",
		"an rlimit that has a type, and whose hard and soft limits are from 0 to 18446744073709551615")
}

// raiseMemlock changes process.rlimits so that it contains RLIMIT_MEMLOCK exactly once, with soft and hard of at least
// want.
func raiseMemlock(process *object, want Limit) error {
	texts, limits, err := rlimits(process)
	if err != nil {
		return err
	}
	var (
		kept    []json.RawMessage
		current Rlimit
		found   int
		at      int // index of the first RLIMIT_MEMLOCK in kept
	)
	for i, limit := range limits {
		if limit.Type == RlimitMemlock {
			current = Rlimit{Soft: max(current.Soft, LimitOf(limit.Soft)), Hard: max(current.Hard, LimitOf(limit.Hard))}
			found++
			if found > 1 {
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

// WithoutRlimit returns the JSON text of an OCI runtime spec without the rlimits of a type.
func WithoutRlimit(text []byte, kind string) ([]byte, error) {
	root, err := parseObject(wholeSpec, text)
	if err != nil {
		return nil, err
	}
	err = root.edit("process", func(process *object) error {
		texts, limits, err := rlimits(process)
		var others []json.RawMessage
		for i, limit := range limits {
			if limit.Type != kind {
				others = append(others, texts[i])
			}
		}
		process.setList("rlimits", others)
		return err
	})
	return root.text, err
}
