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

// variable is the environment variable with the seed, or with "random" for another one in each run.
const variable = "RDMA_TEST_SEED"

// New returns random numbers, the same ones in every run unless the environment has another seed: what fails then fails
// because of a change. A seed repeats the numbers, not what the scheduler does.
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
