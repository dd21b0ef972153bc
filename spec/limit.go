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

// LimitOf returns the limit for a number of bytes. For 2^63-1 or more bytes, LimitOf returns Unlimited, because some
// configuration formats cannot represent larger numbers.
func LimitOf(bytes uint64) Limit {
	if bytes >= math.MaxInt64 {
		return Unlimited
	}
	return Limit(bytes)
}

// maxQuantityLength is the maximum length, in bytes, of a text that ParseLimit passes to the quantity parser. The
// longest useful quantity is much shorter.
const maxQuantityLength = 32

// hugeExponent matches quantities such as 1e-99999999, which the quantity parser takes minutes to parse. A quantity
// with such an exponent cannot be a size on a node.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// ParseLimit parses "unlimited", a number of bytes up to 18446744073709551615 (see LimitOf), or a Kubernetes quantity
// of bytes below 8Ei, such as 500M, 0.5Gi, or 16Gi. The error describes the problem with the value, and contains valid
// examples.
func ParseLimit(text string) (Limit, error) {
	fail := func(format string, args ...any) (Limit, error) {
		return 0, fmt.Errorf("memlock "+format+": write unlimited, or a size such as 16Gi or 500M", args...)
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
		return fail("%q is too large (8Ei or more)", text)
	case quantity.CmpInt64(quantity.Value()) != 0: // Value rounds up
		return fail("%q is not a whole number of bytes", text)
	}
	return Limit(quantity.Value()), nil
}

// String returns "unlimited", or the shortest exact size, such as "16Gi", "8Mi", or "65537". ParseLimit can parse the
// result.
func (l Limit) String() string {
	if l == Unlimited {
		return "unlimited"
	}
	return resource.NewQuantity(int64(l), resource.BinarySI).String()
}

// Finite reports whether the limit is a number of bytes instead of Unlimited.
func (l Limit) Finite() bool { return l != Unlimited }

// MarshalJSON writes the limit in the format of String.
func (l Limit) MarshalJSON() ([]byte, error) { return json.Marshal(l.String()) }

// UnmarshalJSON reads the format that MarshalJSON writes.
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

// MarshalJSON writes each limit both as a text and in bytes. In bytes, Unlimited is the largest uint64, as in the
// kernel.
func (l Rlimit) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Soft      Limit  `json:"soft"`
		SoftBytes uint64 `json:"softBytes"`
		Hard      Limit  `json:"hard"`
		HardBytes uint64 `json:"hardBytes"`
	}{l.Soft, uint64(l.Soft), l.Hard, uint64(l.Hard)})
}

// Raise returns the RLIMIT_MEMLOCK that lets a process with the current limit lock at least want bytes, and whether the
// result differs from the current limit. Raise never lowers the soft or the hard limit.
func (current Rlimit) Raise(want Limit) (Rlimit, bool) {
	if current.Soft >= want { // the kernel enforces the soft limit
		return current, false
	}
	return Rlimit{Soft: want, Hard: max(current.Hard, want)}, true
}

// RlimitMemlock is the type of the rlimit, in the only spelling that both runc and crun accept.
const RlimitMemlock = "RLIMIT_MEMLOCK"

// rlimits returns the elements of process.rlimits, both as JSON text and decoded.
func rlimits(process *object) ([]json.RawMessage, []specs.POSIXRlimit, error) {
	return objects[specs.POSIXRlimit](process, "rlimits",
		"an rlimit with a type, and with hard and soft limits from 0 to 18446744073709551615")
}

// raiseMemlock changes process.rlimits so that it contains RLIMIT_MEMLOCK exactly once, with a soft and a hard limit of
// at least want.
func raiseMemlock(process *object, want Limit) error {
	texts, limits, err := rlimits(process)
	if err != nil {
		return err
	}
	var (
		kept    []json.RawMessage
		current Rlimit
		found   int
		at      int // the index of the first RLIMIT_MEMLOCK in kept
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

// WithoutRlimit returns the JSON text of an OCI runtime spec without the rlimits of the given type.
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
