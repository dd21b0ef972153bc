// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chance gives tests random numbers that can be had again.
package chance

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is the environment variable with the seed of a run that is to be repeated.
const Seed = "RDMA_TEST_SEED"

// New returns random numbers, from a seed that the test's log names. The seed repeats the numbers, not what the
// scheduler does.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64() //nolint:gosec // a test's
	if text := os.Getenv(Seed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", Seed, err)
		}
	}
	t.Logf("to have the same random numbers again: %s=%d", Seed, seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's
}
