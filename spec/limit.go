// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Limit is a value of RLIMIT_MEMLOCK in bytes.
type Limit uint64

// Unlimited is RLIM_INFINITY, as the OCI runtime spec and NRI write it.
const Unlimited Limit = math.MaxUint64

// maxQuantityLength bounds what is handed to the quantity parser. The longest useful quantity, 2^63-1 with a suffix, is far shorter.
const maxQuantityLength = 32

// ParseLimit reads "unlimited" or a Kubernetes quantity of bytes: 65536, 500M, 16Gi.
// The error says what is wrong with the value and what a good one looks like.
func ParseLimit(text string) (Limit, error) {
	if text == "unlimited" {
		return Unlimited, nil
	}
	if len(text) > maxQuantityLength {
		return 0, fmt.Errorf("memlock is %d characters long: write unlimited, or bytes such as 16Gi or 500M", len(text))
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("memlock %q is no size: write unlimited, or bytes such as 16Gi or 500M", text)
	}
	bytes, exact := quantity.AsInt64()
	switch {
	case quantity.Sign() <= 0:
		return 0, fmt.Errorf("memlock %q is not above zero: write unlimited, or bytes such as 16Gi or 500M", text)
	case !exact:
		return 0, fmt.Errorf("memlock %q is no whole number of bytes below 8Ei: write unlimited, or bytes such as 16Gi or 500M", text)
	}
	return Limit(bytes), nil
}

// String gives "unlimited", or the shortest exact quantity: "16Gi", "8Mi", "65537".
func (l Limit) String() string {
	if l > math.MaxInt64 {
		return "unlimited"
	}
	return resource.NewQuantity(int64(l), resource.BinarySI).String()
}

// Finite says that the limit is a number of bytes.
func (l Limit) Finite() bool { return l != Unlimited }

// MarshalJSON writes the limit as String does.
func (l Limit) MarshalJSON() ([]byte, error) { return json.Marshal(l.String()) }

// Rlimit is what a process is held to: soft is in force, hard is how far the process itself may raise it.
type Rlimit struct {
	Soft Limit `json:"soft"`
	Hard Limit `json:"hard"`
}

// Raise gives the RLIMIT_MEMLOCK of a process that has the current one and shall be able to lock at least want bytes,
// and whether that differs from the current one. Neither soft nor hard is ever lowered.
func (current Rlimit) Raise(want Limit) (Rlimit, bool) {
	raised := Rlimit{Soft: max(current.Soft, want), Hard: max(current.Hard, want)}
	if current.Soft >= want {
		// The soft limit is what the kernel compares with: it suffices.
		return current, false
	}
	return raised, true
}
