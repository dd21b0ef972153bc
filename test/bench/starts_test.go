// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/test/testing/runc"
)

// starts compares how long runc takes for a container that ends at once, with the hook of CDI files and without it.
func starts(t *testing.T) result {
	const pairs = 50
	folder, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	r := runc.New(t)
	hook := r.Hook(filepath.Join(folder, "rdma-hook"))
	run := func(name string, hooks ...specs.Hook) float64 {
		began := time.Now()
		if _, err := r.Run(name, []string{"true"}, hooks...); err != nil {
			t.Fatal(err)
		}
		return float64(time.Since(began).Microseconds()) / 1e3
	}
	var ours, theirs, longer []float64
	for i := range pairs {
		with, without := 0.0, 0.0
		if i%2 == 0 {
			with, without = run(fmt.Sprint("with-", i), hook), run(fmt.Sprint("without-", i))
		} else {
			without, with = run(fmt.Sprint("without-", i)), run(fmt.Sprint("with-", i), hook)
		}
		ours, theirs, longer = append(ours, with), append(theirs, without), append(longer, with-without)
	}
	return result{
		what: "a container starts with the hook", against: "the same without", unit: "p50 ms",
		ours: spreadOf(ours).median, theirs: spreadOf(theirs).median, compared: spreadOf(longer),
		difference: true, target: 10,
	}
}
