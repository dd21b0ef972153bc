// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chance provides random numbers to tests, which can be repeated.
package chance

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// variable is the environment variable that contains the seed, or "random" for a different seed in each run.
const variable = "RDMA_TEST_SEED"

// New returns random numbers. They are the same in every run unless the environment sets another seed, so a test that
// begins to fail does so because of a change. A seed repeats the numbers, but not the scheduling of goroutines.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	switch text := os.Getenv(variable); text {
	case "":
	case "random":
		seed = rand.Uint64()
	default:
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
	}
	t.Logf("to have the same random numbers again: %s=%d", variable, seed)
	return rand.New(rand.NewPCG(seed, 0))
}
